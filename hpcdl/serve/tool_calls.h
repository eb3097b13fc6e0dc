#pragma once
// Calls of tools in the text of an answer, in the formats that chat templates teach their models.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::serve {

enum class ToolFormat {
  none,     // the text of an answer has no calls
  hermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>, of Hermes and Qwen
  mistral,  // [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]
  llama,    // {"name": ..., "parameters": {...}} and nothing else, perhaps after <|python_tag|>
};

/// The format that the source of a chat template shows its model.
ToolFormat tool_format(std::string_view chat_template);
/// What stands before a call; empty where nothing has to.
std::string_view tool_marker(ToolFormat format);

struct ToolCall {
  std::string name, arguments;  // JSON
};

/// Takes the calls out of a text that arrives in parts. What looks like a call and is none stays text. Holds back what may
/// still become a call.
class ToolText {
 public:
  /// `forced`: the whole text is a call, or a list of them, without its marker.
  explicit ToolText(ToolFormat format, bool forced = false);

  struct Part {
    std::string content;
    std::vector<ToolCall> calls;
  };
  /// What became certain.
  Part push(std::string_view text);
  /// The rest, at the end of the text.
  Part finish();

 private:
  void look_for_call(Part& to);
  void end_call(Part& to, std::string_view body, std::string_view raw);
  void pass(Part& to, std::string_view content);

  std::string_view begin_, end_;  // markers; end_ empty: a call goes on to the end of the text
  bool only_first_;               // calls begin at the start of the text or not at all
  bool in_call_;
  bool called_ = false, spoken_ = false;  // a call, or content, has been passed on
  std::string held_;
};

}  // namespace hpcdl::serve
