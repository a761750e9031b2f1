"""An OpenAI-compatible HTTP endpoint over a GGUF model, with exact scores and draws.

`app` has the routes, `fields` reads requests, `engine` decodes them together on one thread, and
`answers` writes the answers.
"""
