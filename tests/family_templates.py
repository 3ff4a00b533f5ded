"""Chat templates in the manner of each family's own, written for the tests: its marks and turns,
and the constructs of Jinja that those templates are known to use.

For every title of docs/models.md; where a family's models come without one, the default holds.
"""

LLAMA_2 = """\
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- set rest, system = messages[1:], messages[0]['content'] -%}
{%- else -%}
    {%- set rest, system = messages, false -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('user and assistant must take turns, the user first') -}}
    {%- endif -%}
    {%- if loop.index0 == 0 and system is not false -%}
        {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] -%}
    {%- else -%}
        {%- set content = message['content'] -%}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' -}}
    {%- elif message['role'] == 'assistant' -%}
        {{- ' ' + content.strip() + ' ' + eos_token -}}
    {%- endif -%}
{%- endfor -%}"""

LLAMA_3 = """\
{{- bos_token }}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- endif %}
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content if messages[0].content is string
        else messages[0].content[0].text %}
    {%- set messages = messages[1:] %}
{%- else %}{% set system = "" %}{% endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{% endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system | trim + "<|eot_id|>" }}
{%- if tools is not none and messages %}
    {%- set first = messages[0].content | string | trim %}
    {%- set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- "\\n\\n" }}{% endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role in ('ipython', 'tool') or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {%- if message.content is string %}{{- message.content | trim }}
        {%- else %}
            {%- for part in message.content %}
                {%- if part.type == 'text' %}{{- part.text | trim }}{% endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{% endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """\
{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message, loop_messages = messages[0]["content"], messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("turns must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{% endif %}
                    {%- if not loop.last %}{{- ", " }}{% endif %}
                {%- endfor %}
                {{- "}}" }}{% if not loop.last %}{{- ", " }}{% endif %}
            {%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{% endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("ids of calls have 9 characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{% else %}{{- "]" + eos_token }}{% endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] in ["tool_results", "tool"] %}
        {%- set content = message.content.content if message.content.content is defined
            else message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}{% endif %}
{%- endfor %}"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{% endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages and messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string
        and not (message.content.startswith('<tool_response>')
                 and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{% set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{% set content = message.content %}
    {%- else %}{% set content = '' %}{% endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{% endif %}
            {%- if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{% endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

GEMMA = """\
{{ bos_token }}
{%- if messages and messages[0]['role'] == 'system' -%}
    {%- set prefix = (messages[0]['content'] if messages[0]['content'] is string
        else messages[0]['content'][0]['text']) + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set prefix, loop_messages = "", messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"""

PHI = """\
{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message \
and message['tools'] is not none %}{{ '<|system|>' + message['content'] + '<|tool|>' \
+ message['tools'] + '<|/tool|><|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' \
+ message['content'] + '<|end|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""

SMOLLM_3 = """\
{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}
{%- set mode = "/think" if enable_thinking else "/no_think" %}
{%- set custom = messages[0].content.replace("/no_think", "").rstrip()
    if messages and messages[0].role == "system" and messages[0].content is string else none %}
{{- "<|im_start|>system\\n## Metadata\\n\\nToday Date: " + strftime_now("%d %B %Y") + "\\n" }}
{{- "Reasoning Mode: " + mode + "\\n\\n" + (custom if custom else "You are helpful.") + "\\n" }}
{%- if tools %}
    {%- for tool in tools %}{{- tool.function | string }}{{- "\\n" }}{% endfor %}
{%- endif %}
{{- "<|im_end|>\\n" }}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else "" %}
    {%- if message.role == "user" %}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" %}
        {%- generation %}
        {{- "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endgeneration %}
    {%- elif message.role == "tool" %}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" + ("" if enable_thinking else "<think>\\n\\n</think>\\n") }}
{%- endif %}"""

OLMO = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] != 'assistant' %}\
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}{% else %}\
{% if not loop.last %}{{ '<|assistant|>\\n' + message['content'] + eos_token + '\\n' }}\
{% else %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""

GRANITE = """\
{%- macro turn(role, text) %}<|start_of_role|>{{ role }}<|end_of_role|>{{ text }}<|end_of_text|>
{% endmacro %}
{%- if messages and messages[0]['role'] == 'system' %}
    {%- set system_message, loop_messages = messages[0]['content'], messages[1:] %}
{%- else %}
    {%- set system_message = "Knowledge Cutoff Date: April 2024.\\nToday's Date: "
        + strftime_now('%B %d, %Y') + "." %}
    {%- if tools and documents %}{% set system_message = system_message + " Tools, documents." %}
    {%- elif tools %}{% set system_message = system_message + " Tools." %}{% endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- turn('system', system_message) }}
{%- if tools %}{{- turn('tools', tools | tojson(indent=4)) }}{% endif %}
{%- for message in loop_messages %}{{- turn(message['role'], message['content']) }}{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_of_role|>assistant' }}
    {%- if controls %}{{- ' ' + controls | tojson() }}{% endif %}
    {{- '<|end_of_role|>' }}
{%- endif %}"""

STABLELM = """\
{% for message in messages %}{{ '<|' + message.role + '|>' + '\\n' + message.content \
+ eos_token + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

FALCON = """\
{% for message in messages %}{% if not loop.first %}{{ '\\n' }}{% endif %}\
{% if message['role'] == 'system' %}{{ message['content'] }}\
{% elif message['role'] == 'user' %}{{ 'User: ' ~ message['content'] | replace('\\r\\n', '\\n') }}\
{% elif message['role'] == 'assistant' %}{{ 'Falcon: ' ~ message['content'] }}\
{% else %}{{ raise_exception('Unknown role ' ~ message['role']) }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '\\nFalcon:' }}{% endif %}"""

STARCODER = """\
{{ bos_token }}{% for message in messages %}{% if loop.first and message.role != 'system' %}\
{{ 'You are an exceptionally intelligent coding assistant.\\n\\n' }}{% endif %}\
{% if message.role == 'system' %}{{ message.content + '\\n\\n' }}{% elif message.role == 'user' %}\
{{ '### Instruction\\n' + message.content + '\\n\\n' }}{% else %}\
{{ '### Response\\n' + message.content + eos_token + '\\n\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '### Response\\n' }}{% endif %}"""

COHERE = """\
{%- set names = {'user': 'USER', 'assistant': 'CHATBOT', 'system': 'SYSTEM', 'tool': 'SYSTEM'} -%}
{{ bos_token }}
{%- if not messages or messages[0]['role'] != 'system' -%}
    {{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be helpful.<|END_OF_TURN_TOKEN|>' }}
{%- endif -%}
{%- for message in messages -%}
    {%- set content = message['content'] | default('', true) -%}
    {{ '<|START_OF_TURN_TOKEN|><|' + names[message['role']] + '_TOKEN|>' }}
    {{- content.strip() if content is string else (content | map(attribute='text') | join('')) }}
    {{- '<|END_OF_TURN_TOKEN|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif -%}"""

TEMPLATES: dict[str, dict[str, str]] = {
    "Llama": {"2": LLAMA_2, "3": LLAMA_3},
    "Mistral": {"": MISTRAL},
    "Mixtral": {"": LLAMA_2},
    "Qwen2": {"": QWEN},
    "Qwen3": {"": QWEN},
    "Qwen3-MoE": {"": QWEN},
    "Gemma": {"": GEMMA},
    "Gemma 2": {"": GEMMA},
    "Gemma 3": {"": GEMMA},
    "Phi-3": {"": PHI},
    "SmolLM3": {"": SMOLLM_3},
    "OLMo 2": {"": OLMO},
    "OLMo 3": {"": OLMO},
    "Granite": {"": GRANITE},
    "StableLM": {"": STABLELM},
    "StarCoder2": {"": STARCODER},
    "Cohere": {"": COHERE},
    "Cohere 2": {"": COHERE},
    "Falcon": {"": FALCON},
}
"""By title, and version where there are several."""
BARE = {"GPT-NeoX", "GPT-2", "GPT"}
"""Families whose models have none, and get our default."""
