"""A store as it was at one moment, kept elsewhere, and made anew from there."""
