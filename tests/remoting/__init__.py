"""The promises of remoting."""
