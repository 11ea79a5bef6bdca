"""Pictures and prompts as users have them."""
