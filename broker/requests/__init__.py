"""How is each request code answered? One processor a family of codes."""
