//! The families: how their models write reasoning and calls, and how a chat template gives its family away.

use super::headed::Style;
use super::reasoning::Fences;
use super::tools::{Body, Grammar};
use crate::config::{ReasoningParser, ToolParser};

const HERMES: Grammar = Grammar { sections: &[], calls: &["<tool_call>"], ends: &["</tool_call>"], body: Body::Object };
const QWEN3_CODER: Grammar =
    Grammar { sections: &[], calls: &["<tool_call>", "<function="], ends: &["</tool_call>"], body: Body::Xml };
const LLAMA3_JSON: Grammar = Grammar { sections: &[], calls: &["<|python_tag|>"], ends: &[], body: Body::Object };
const MISTRAL: Grammar = Grammar { sections: &[], calls: &["[TOOL_CALLS]"], ends: &[], body: Body::Mistral };
const DEEPSEEK_V3: Grammar = Grammar {
    sections: &["<｜tool▁calls▁begin｜>"],
    calls: &["<｜tool▁call▁begin｜>"],
    ends: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    body: Body::Headed(Style::DeepSeekV3),
};
const DEEPSEEK_V31: Grammar = Grammar {
    sections: &["<｜tool▁calls▁begin｜>"],
    calls: &["<｜tool▁call▁begin｜>"],
    ends: &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    body: Body::Headed(Style::DeepSeekV31),
};
const KIMI_K2: Grammar = Grammar {
    sections: &["<|tool_calls_section_begin|>"],
    calls: &["<|tool_call_begin|>"],
    ends: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
    body: Body::Headed(Style::KimiK2),
};

const THINK: Fences = Fences { open: "<think>", close: "</think>", implied: &[] };
const KIMI_THINK: Fences = Fences { open: "<think>", close: "</think>", implied: &["<|tool_calls_section_begin|>"] };
const KIMI_VL: Fences = Fences { open: "◁think▷", close: "◁/think▷", implied: &[] };
const MAGISTRAL: Fences = Fences { open: "[THINK]", close: "[/THINK]", implied: &[] };

pub(super) fn grammar(parser: ToolParser) -> Option<&'static Grammar> {
    match parser {
        ToolParser::Hermes => Some(&HERMES),
        ToolParser::Qwen3Coder => Some(&QWEN3_CODER),
        ToolParser::Llama3Json => Some(&LLAMA3_JSON),
        ToolParser::Mistral => Some(&MISTRAL),
        ToolParser::DeepseekV3 => Some(&DEEPSEEK_V3),
        ToolParser::DeepseekV31 => Some(&DEEPSEEK_V31),
        ToolParser::KimiK2 => Some(&KIMI_K2),
        ToolParser::Auto | ToolParser::None | ToolParser::Harmony => None,
    }
}

pub(super) fn fences(parser: ReasoningParser) -> Option<&'static Fences> {
    match parser {
        ReasoningParser::Qwen3 | ReasoningParser::DeepseekR1 => Some(&THINK),
        ReasoningParser::KimiK2 => Some(&KIMI_THINK),
        ReasoningParser::Kimi => Some(&KIMI_VL),
        ReasoningParser::Mistral => Some(&MAGISTRAL),
        ReasoningParser::Auto | ReasoningParser::None | ReasoningParser::Harmony => None,
    }
}

/// The families of a model whose chat template is `template`, `auto` resolved.
pub(super) fn resolve(tools: ToolParser, reasoning: ReasoningParser, template: &str) -> (ToolParser, ReasoningParser) {
    let has = |mark: &str| template.contains(mark);
    let harmony = has("<|channel|>") && has("<|start|>");
    let tools = match tools {
        ToolParser::Auto if harmony => ToolParser::Harmony,
        ToolParser::Auto if has("<|tool_calls_section_begin|>") => ToolParser::KimiK2,
        ToolParser::Auto if has("<｜tool▁calls▁begin｜>") && has("```json") => ToolParser::DeepseekV3,
        ToolParser::Auto if has("<｜tool▁calls▁begin｜>") => ToolParser::DeepseekV31,
        ToolParser::Auto if has("[TOOL_CALLS]") => ToolParser::Mistral,
        // GLM's templates have the mark and another body.
        ToolParser::Auto if has("<arg_key>") => ToolParser::None,
        ToolParser::Auto if has("<tool_call>") && has("<function=") => ToolParser::Qwen3Coder,
        ToolParser::Auto if has("<tool_call>") => ToolParser::Hermes,
        ToolParser::Auto if has("<|python_tag|>") || has(r#"{"name": function name, "parameters":"#) => {
            ToolParser::Llama3Json
        }
        ToolParser::Auto => ToolParser::None,
        named => named,
    };
    let reasoning = match reasoning {
        ReasoningParser::Auto if harmony => ReasoningParser::Harmony,
        ReasoningParser::Auto if has("◁think▷") => ReasoningParser::Kimi,
        ReasoningParser::Auto if has("[THINK]") => ReasoningParser::Mistral,
        ReasoningParser::Auto if has("<think>") && tools == ToolParser::KimiK2 => ReasoningParser::KimiK2,
        ReasoningParser::Auto if has("<think>") => ReasoningParser::Qwen3,
        ReasoningParser::Auto => ReasoningParser::None,
        named => named,
    };
    (tools, reasoning)
}
