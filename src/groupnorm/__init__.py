"""groupnorm."""
