"""A projection of up to 64 rows, with the scale of a norm on the way in and a bias on the way out."""
