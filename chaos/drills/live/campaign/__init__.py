"""``keelmq drill campaign``: so many strikes of each kind, in each mode, on one code, and one page."""
