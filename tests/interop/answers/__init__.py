"""Tables of what both systems are asked, each entry a row of docs/compatibility.md."""
