"""Chat templates of the families whose weights are not at hand: written for these tests from what is published of each
format (named above each), in the shape and with the temper of the originals.
"""
# ruff: noqa: RUF001  (DeepSeek spells its tokens with wide bars)

from __future__ import annotations

#: Qwen 3: tools in the first system turn, `<tool_call>` JSON, results in user turns, reasoning kept in the last turns.
#: Source: Qwen documentation, "Function Calling", and the model card of Qwen3.
QWEN3 = """\
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif -%}
# Tools
<tools>
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
</tools>
Answer with <tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' -%}
<|im_start|>assistant
{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif -%}
{{- m.content -}}
{%- for call in m.tool_calls or [] -%}
{%- if not loop.first or m.content %}{{ '\\n' }}{% endif -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% elif m.role == 'tool' -%}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}"""

#: Llama 3.1: tools in the first user turn, one bare JSON call per turn, results as `ipython`.
#: Source: Meta, "Llama 3.1 model card and prompt formats", JSON based tool calling.
LLAMA31 = """\
{{- '<|begin_of_text|>' -}}
{%- set ns = namespace(told=false) -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}
{{- raise_exception('This model only supports single tool-calls at once!') -}}
{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if tools and m.role == 'user' and not ns.told -%}
{%- set ns.told = true -%}
Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.
{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\\n\\n' }}{% endfor -%}
{%- endif -%}
{{- m.content | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""

#: Mistral 7B v0.3 and Large 2407 (tokeniser v3): a list of calls with ids of nine characters, strict turns.
#: Source: mistral-common documentation, "Tokenization", v3.
MISTRAL3 = """\
{{- '<s>' -}}
{%- set ns = namespace(turn=0) -%}
{%- for m in messages -%}
{%- if m.role in ('user', 'assistant') and not m.tool_calls -%}
{%- if (m.role == 'user') != (ns.turn % 2 == 0) -%}
{{- raise_exception('After the optional system message, conversation roles must alternate user/assistant') -}}
{%- endif -%}{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.index0 == 0 -%}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST] ' + m.content + '[/INST]' -}}
{%- elif m.tool_calls -%}
{{- '[TOOL_CALLS] [' -}}
{%- for call in m.tool_calls -%}
{%- if call.id | length != 9 -%}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) -}}
{{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') -}}
{%- endfor -%}
{{- ']</s>' -}}
{%- elif m.role == 'assistant' -%}{{- ' ' + m.content + '</s>' -}}
{%- elif m.role == 'tool' -%}
{%- if m.tool_call_id | length != 9 -%}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}
{{- '[TOOL_RESULTS] {"content": ' + (m.content | tojson) + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' -}}
{%- else -%}{{- raise_exception('Only user, assistant and tool roles are supported!') -}}
{%- endif -%}
{%- endfor -%}"""

#: Mistral Small 3.2 and Devstral (tokeniser v11): one marked call after another, after content if there is some.
#: Source: mistral-common documentation, v11.
MISTRAL11 = """\
{{- '<s>' -}}
{%- set ns = namespace(told=false) -%}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}
{%- elif m.role == 'user' -%}
{%- if tools and not ns.told -%}
{%- set ns.told = true -%}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}
{%- endif -%}
{{- '[INST]' + m.content + '[/INST]' -}}
{%- elif m.role == 'assistant' -%}
{{- m.content -}}
{%- for call in m.tool_calls or [] -%}
{%- if call.id | length != 9 -%}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') -}}
{%- endif -%}
{{- '[TOOL_CALLS]' + call.function.name + '[CALL_ID]' + call.id + '[ARGS]' + (call.function.arguments | tojson) -}}
{%- endfor -%}
{{- '</s>' -}}
{%- elif m.role == 'tool' -%}
{{- '[TOOL_RESULTS]' + m.tool_call_id + '[TOOL_CONTENT]' + m.content + '[/TOOL_RESULTS]' -}}
{%- endif -%}
{%- endfor -%}"""

#: DeepSeek V3-0324 and R1-0528: arguments in a code fence; the R1 prompt opens the reasoning.
#: Source: model cards and `tokenizer_config.json` of DeepSeek-V3-0324 and R1.
DEEPSEEK3 = """\
{{- '<｜begin▁of▁sentence｜>' -}}
{%- for m in messages -%}
{%- if m.role == 'system' -%}{{- m.content -}}{%- endif -%}
{%- endfor -%}
{%- for tool in tools or [] -%}
{{- ('\\n\\n## Tools\\n' if loop.first else '') + (tool.function | tojson) + '\\n' -}}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<｜User｜>' + m.content -}}
{%- elif m.role == 'assistant' -%}
{{- '<｜Assistant｜>' + m.content.split('</think>')[-1] -}}
{%- if m.tool_calls -%}
{{- '<｜tool▁calls▁begin｜>' -}}
{%- for call in m.tool_calls -%}
{{- '' if loop.first else '\\n' -}}
{{- '<｜tool▁call▁begin｜>' + call.type + '<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' -}}
{{- (call.function.arguments | tojson) + '\\n```<｜tool▁call▁end｜>' -}}
{%- endfor -%}
{{- '<｜tool▁calls▁end｜>' -}}
{%- endif -%}
{{- '<｜end▁of▁sentence｜>' -}}
{%- elif m.role == 'tool' -%}{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜><think>\\n' -}}{%- endif -%}"""

#: DeepSeek V3.1: the arguments follow the name. Source: model card of DeepSeek-V3.1, "ToolCall".
DEEPSEEK31 = (
    DEEPSEEK3.replace(
        "call.type + '<｜tool▁sep｜>' + call.function.name + '\\n```json\\n'", "call.function.name + '<｜tool▁sep｜>'"
    )
    .replace("'\\n```<｜tool▁call▁end｜>'", "'<｜tool▁call▁end｜>'")
    .replace("<think>\\n", "</think>")
)

#: Kimi K2: ids are part of the markup. Source: Kimi-K2, docs/tool_call_guidance.md.
KIMI = """\
{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' + (tools | tojson) + '<|im_end|>' -}}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{{- '<|im_user|>user<|im_middle|>' + m.content -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_assistant|>assistant<|im_middle|>' + m.content -}}
{%- if m.tool_calls -%}
{{- '<|tool_calls_section_begin|>' -}}
{%- for call in m.tool_calls -%}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}
{{- (call.function.arguments | tojson) + '<|tool_call_end|>' -}}
{%- endfor -%}
{{- '<|tool_calls_section_end|>' -}}
{%- endif -%}
{%- elif m.role == 'tool' -%}{{- '<|im_system|>tool<|im_middle|>## Return of ' + m.tool_call_id + '\\n' + m.content -}}
{%- else -%}{{- '<|im_system|>system<|im_middle|>' + m.content -}}
{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}"""

#: Phi-4-mini: a list in the tags. Source: model card of Phi-4-mini-instruct, "Tool-enabled function-calling format".
PHI4 = """\
{%- for m in messages -%}
{%- if m.role == 'system' and tools -%}
{{- '<|system|>' + m.content + '<|tool|>' + (tools | tojson) + '<|/tool|><|end|>' -}}
{%- else -%}
{%- if tools and loop.first -%}{{- '<|system|><|tool|>' + (tools | tojson) + '<|/tool|><|end|>' -}}{%- endif -%}
{{- '<|' + m.role + '|>' + m.content -}}
{%- if m.tool_calls -%}
{{- '<|tool_call|>[' -}}
{%- for call in m.tool_calls -%}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' -}}
{{- '' if loop.last else ', ' -}}
{%- endfor -%}
{{- ']<|/tool_call|>' -}}
{%- endif -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"""

#: SmolLM2 135M to 1.7B Instruct: knows neither tools nor results. Source: its tokenizer_config.json.
SMOLLM2 = """\
{%- for m in messages -%}
{%- if loop.first and m.role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

#: Gemma 3: turns of two roles, nothing about tools. Source: Gemma documentation, "Gemma formatting".
GEMMA3 = """\
{{- '<bos>' -}}
{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
{%- endif -%}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (first if loop.first else '') -}}
{{- (m.content | trim) + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}"""

#: Family -> (template, tool format, what may follow an answer in the prompt).
FAMILIES = {
    "qwen3": (QWEN3, "hermes", "<|im_end|>\n"),
    "llama31": (LLAMA31, "llama3_json", "<|eot_id|>"),
    "mistral3": (MISTRAL3, "mistral", "</s>"),
    "mistral11": (MISTRAL11, "mistral_v11", "</s>"),
    "deepseek3": (DEEPSEEK3, "deepseek_v3", "<｜end▁of▁sentence｜>"),
    "deepseek31": (DEEPSEEK31, "deepseek_v31", "<｜end▁of▁sentence｜>"),
    "kimi": (KIMI, "kimi_k2", "<|im_end|>"),
    "phi4": (PHI4, "tool_call_list", "<|end|>"),
    "smollm2": (SMOLLM2, "smollm2", "<|im_end|>\n"),
    "gemma3": (GEMMA3, "json", "<end_of_turn>\n"),
}
