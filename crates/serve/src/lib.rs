//! Trained models over HTTP: answers that stream step by step, and a page to play with them.
