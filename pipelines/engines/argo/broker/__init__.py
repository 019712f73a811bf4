"""The broker beside a stage that handles an author's files: `permissions` says what the stage may ask for."""
