"""Modules for TorchScript, which reads their source: loops, branches, and what a graph may lack."""

import torch
from torch import Tensor, nn


class Angles(nn.Module):  # type: ignore[misc]
    """The angle of each pair."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 3)."""
        return torch.atan2(x[:, :3], x[:, 3:])


class Recurrent(nn.Module):  # type: ignore[misc]
    """The states of a bidirectional GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 5, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, steps, 8) to (rows, steps, 10)."""
        return self.gru(x)[0]


class Pair(nn.Module):  # type: ignore[misc]
    """Two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, 6) to its sums and the places of its largest values."""
        return x.sum(1), x.argmax(1)


class Spectrum(nn.Module):  # type: ignore[misc]
    """The power of a sound by frequency and time."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 256) to (rows, 33, 17)."""
        window = torch.hann_window(64)
        return torch.stft(x, 64, 16, window=window, return_complex=True).abs()


class Loop(nn.Module):  # type: ignore[misc]
    """A recurrence, step by step."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, steps, 8) to (rows, 8)."""
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = torch.tanh(state * 0.5 + x[:, step])
        return state


class Branch(nn.Module):  # type: ignore[misc]
    """Another answer to a batch of one row, which is the same for each row."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        if x.shape[0] > 1:
            return x * 2
        return x + x


class While(nn.Module):  # type: ignore[misc]
    """Halves each row until it is small; what it does for a row depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows, 6)."""
        while bool((x.abs() > 1).any()):
            x = torch.where(x.abs() > 1, x / 2, x)
        return x


class Unique(nn.Module):  # type: ignore[misc]
    """How many different values each row has."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, 6) to (rows,)."""
        return torch.tensor([torch.unique(x[row]).shape[0] for row in range(x.shape[0])])
