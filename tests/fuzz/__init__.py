"""Fuzzers: every decoder under hostile bytes, and a live broker group under a hostile client."""
