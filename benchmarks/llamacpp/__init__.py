"""Published models in llama.cpp, with its own output layer and with a decoder in its place."""
