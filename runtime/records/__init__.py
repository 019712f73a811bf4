"""What crosses a step: small frozen records with units in their field names, one module per subject."""
