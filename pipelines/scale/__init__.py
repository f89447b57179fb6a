"""Our `fit` beside what a user would pick instead, each in its own process under one memory cap."""
