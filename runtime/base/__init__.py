"""What everything else stands on: errors, names, storage, progress, git, secrets."""
