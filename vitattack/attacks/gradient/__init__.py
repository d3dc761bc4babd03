"""The gradient loop with its exchangeable parts, and the attacks made of them."""
