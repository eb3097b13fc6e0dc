// Hostile bodies of requests, and answers with anything in place of a call.
#include "hpcdl/serve/openai.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/serve/model_for_tests.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hpcdl;
  static const serve::ModelFacts model{
      .name = "m",
      .tokenizer = serve::byte_tokenizer(),
      .chat = io::ChatTemplate::parse(serve::kTestTemplate),
      .tools = serve::ToolFormat::hermes,
      .context = 256,
      .vocab = 260,
      .constraints = std::make_shared<serve::Constraints>(serve::byte_tokenizer(), std::vector<std::int32_t>{256})};
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 5) {
      case 0: {
        const auto call = serve::read_completion(body, model);
        for (std::size_t i = 0; i < call.choices(); ++i) call.of_choice(i);
        break;
      }
      case 1: serve::read_chat(body, model); break;
      case 2: serve::tokenize(body, model); break;
      case 3: {
        serve::ToolText text(static_cast<serve::ToolFormat>(data[0] / 5 % 4), data[0] / 20 % 2 == 1);
        for (std::size_t i = 0; i < body.size(); i += 5) text.push(body.substr(i, 5));
        text.finish();
        break;
      }
      default: serve::detokenize(body, model);
    }
  } catch (const Error&) {
  } catch (const serve::Refusal&) {}
  return 0;
}
