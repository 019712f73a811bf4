"""`graphs/onnx_model.py`, as it is called in packages."""

from shiplift.runtime.guest.graphs.onnx_model import TritonPythonModel as TritonPythonModel
