"""Commands on users and policies of ACL 2.0."""
