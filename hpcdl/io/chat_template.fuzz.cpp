// Hostile chat templates: they are refused or rendered, within bounds.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/io/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl;
  static const io::OrderedJson kMessages = io::OrderedJson::parse(
      R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "\u00e9 x"}]}])");
  static const io::OrderedJson kTools = io::OrderedJson::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}])");
  try {
    const auto chat = io::ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
    io::chat_prompt(chat, kMessages, kTools, true, {{"n", 3}, {"x", 1.5}});
  } catch (const Error&) {}
  return 0;
}
