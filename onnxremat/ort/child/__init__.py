"""Models executed in processes of their own."""
