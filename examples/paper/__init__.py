"""The evaluation of the Coop paper: its eight networks, and what is measured on them."""
