#include "hpcdl/serve/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/serve/fields.h"

namespace hpcdl::serve {

namespace {

constexpr std::string_view kSpace = " \t\r\n", kPython = "<|python_tag|>";

/// The length of the longest end of `text` that is a beginning of `word`.
std::size_t begun(std::string_view text, std::string_view word) {
  for (auto n = std::min(text.size(), word.size() - 1); n > 0; --n)
    if (text.ends_with(word.substr(0, n))) return n;
  return 0;
}

std::string_view without_space_at_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

/// The JSON values of a text, between which there may be spaces, commas and semicolons; none if there is anything else.
std::vector<std::string_view> values_in(std::string_view text) {
  std::vector<std::string_view> list;
  int depth = 0;
  bool quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      else quoted = c != '"';
    } else if (c == '{' || c == '[') {
      if (depth++ == 0) begin = i;
    } else if (depth == 0) {
      if (kSpace.find(c) == kSpace.npos && c != ',' && c != ';') return {};
    } else if (c == '"') {
      quoted = true;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      list.push_back(text.substr(begin, i + 1 - begin));
    }
  }
  return depth == 0 ? list : std::vector<std::string_view>();
}

std::optional<ToolCall> call_of(const Json& json) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return {};
  const auto arguments = json.contains("arguments") ? json["arguments"] : json.value("parameters", Json::object());
  if (!arguments.is_object() && !arguments.is_string()) return {};
  return ToolCall{json["name"], arguments.is_string() ? arguments.get<std::string>() : arguments.dump()};
}

/// Empty if the text is anything else.
std::vector<ToolCall> calls_in(std::string_view text) {
  std::vector<ToolCall> calls;
  for (const auto value : values_in(text)) {
    Json json;
    try {
      json = io::parse_ordered_json(value, "a call");
    } catch (const Error&) {
      return {};
    }
    for (const auto& one : json.is_array() ? json : Json::array({json})) {
      auto call = call_of(one);
      if (!call) return {};
      calls.push_back(std::move(*call));
    }
  }
  return calls;
}

}  // namespace

ToolFormat tool_format(std::string_view source) {
  const auto has = [&](std::string_view word) { return source.find(word) != source.npos; };
  if (has("<tool_call>")) return ToolFormat::hermes;
  if (has("[TOOL_CALLS]") && !has("[ARGS]")) return ToolFormat::mistral;
  return has(kPython) || has("ipython") ? ToolFormat::llama : ToolFormat::none;
}

std::string_view tool_marker(ToolFormat format) {
  switch (format) {
    case ToolFormat::hermes: return "<tool_call>";
    case ToolFormat::mistral: return "[TOOL_CALLS]";
    default: return "";
  }
}

ToolText::ToolText(ToolFormat format, bool forced)
    : begin_(format == ToolFormat::llama ? kPython : tool_marker(format)),
      end_(format == ToolFormat::hermes ? "</tool_call>" : ""),
      only_first_(format == ToolFormat::llama),
      in_call_(forced) {
  if (forced) begin_ = {};
}

void ToolText::pass(Part& to, std::string_view content) {
  to.content += content;
  spoken_ = spoken_ || !content.empty();
}

void ToolText::end_call(Part& to, std::string_view body, std::string_view raw) {
  const auto calls = calls_in(body);
  called_ = called_ || !calls.empty();
  to.calls.insert(to.calls.end(), calls.begin(), calls.end());
  if (calls.empty()) pass(to, raw);
}

/// Passes on what cannot belong to a call, up to the beginning of one.
void ToolText::look_for_call(Part& to) {
  if (only_first_) {
    const auto first = held_.find_first_not_of(kSpace);
    if (first == held_.npos) return;
    const auto text = std::string_view(held_).substr(first);
    in_call_ = !spoken_ && (text[0] == '{' || text.starts_with(begin_));
    if (in_call_ || (!spoken_ && begin_.starts_with(text))) return;
    pass(to, held_);
    return held_.clear();
  }
  const auto at = held_.find(begin_);
  if (at != held_.npos) {
    pass(to, without_space_at_end(std::string_view(held_).substr(0, at)));
    held_.erase(0, at);
    in_call_ = true;
    return;
  }
  const auto certain = std::string_view(held_).substr(0, held_.size() - begun(held_, begin_));
  const auto content = without_space_at_end(certain);
  pass(to, content);
  held_.erase(0, content.size());
}

ToolText::Part ToolText::push(std::string_view text) {
  Part part;
  held_ += text;
  if (begin_.empty() && !in_call_) {
    pass(part, held_);
    held_.clear();
    return part;
  }
  for (;;) {
    if (!in_call_) look_for_call(part);
    const auto at = in_call_ && !end_.empty() ? held_.find(end_) : held_.npos;
    if (at == held_.npos) return part;
    const auto raw = std::string_view(held_).substr(0, at + end_.size());
    end_call(part, raw.substr(begin_.size(), at - begin_.size()), raw);
    held_.erase(0, raw.size());
    in_call_ = false;
  }
}

ToolText::Part ToolText::finish() {
  Part part;
  if (in_call_) {
    std::string_view body = held_;
    if (const auto first = body.find_first_not_of(kSpace); first != body.npos) body.remove_prefix(first);
    if (body.starts_with(begin_)) body.remove_prefix(begin_.size());
    end_call(part, body, held_);
  } else if (!called_ || held_.find_first_not_of(kSpace) != held_.npos) {
    pass(part, held_);
  }
  held_.clear();
  return part;
}

}  // namespace hpcdl::serve
