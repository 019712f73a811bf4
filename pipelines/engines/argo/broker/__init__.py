"""The broker beside a stage that handles an author's files: `desk` says what the stage may ask for."""
