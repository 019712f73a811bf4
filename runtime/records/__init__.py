"""The records that steps exchange: small, frozen, with units in their field names, one module per subject."""
