"""The foundation of everything else: errors, names, storage, progress, git, secrets."""
