"""What makes the golden files that tests of the Rust code compare with; golden.py runs them."""
