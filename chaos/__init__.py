"""The suite that breaks clusters on purpose, and checks what they promised."""
