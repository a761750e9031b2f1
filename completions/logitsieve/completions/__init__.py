"""An OpenAI-compatible HTTP endpoint over a GGUF model, with exact scores and draws."""
