#include "hpcdl/serve/embeddings.h"

#include <fmt/ranges.h>

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "hpcdl/io/json.h"
#include "hpcdl/serve/fields.h"
#include "hpcdl/serve/openai.h"

namespace hpcdl::serve {

namespace {

constexpr std::int64_t kMostTexts = 2048;
constexpr const char *kField = "input", *kForms = "a string, token ids, or a list of these";

std::string base64(std::span<const float> vector) {
  static_assert(std::endian::native == std::endian::little);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto bytes = std::as_bytes(vector);
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) {
      return i + k < bytes.size() ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0U;
    };
    const auto three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t k = 0; k < 4; ++k) text += i + k <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::vector<std::vector<std::int32_t>> texts_of(Fields& fields, const ModelFacts& facts, const LoadedEncoder& encoder,
                                                bool truncate) {
  const auto* value = fields.find(kField);
  if (!value) throw Refusal(400, "the request has no \"input\"");
  const auto of_text = [&](const Json& v) { return encoder.ids(v.get_ref<const std::string&>(), truncate); };
  const auto of_ids = [&](const Json& v) {
    auto ids = token_ids(fields, kField, v, facts.tokenizer.vocab_size());
    if (std::ssize(ids) > facts.context && truncate) ids.resize(static_cast<std::size_t>(facts.context));
    if (ids.empty() || std::ssize(ids) > facts.context)
      throw Refusal(400, fmt::format("\"input\": a text has {} tokens: expected 1 to {}", ids.size(), facts.context),
                    "context_length_exceeded");
    return ids;
  };
  if (value->is_string()) return {of_text(*value)};
  if (!value->is_array() || value->empty()) fields.wrong(kField, kForms, *value);
  if (value->front().is_number()) return {of_ids(*value)};
  if (std::ssize(*value) > kMostTexts) fields.wrong(kField, fmt::format("at most {} texts", kMostTexts), *value);
  std::vector<std::vector<std::int32_t>> texts;
  for (const auto& v : *value) {
    if (!v.is_string() && !v.is_array()) fields.wrong(kField, kForms, v);
    texts.push_back(v.is_string() ? of_text(v) : of_ids(v));
  }
  return texts;
}

}  // namespace

std::int64_t EmbeddingCall::tokens() const {
  std::int64_t sum = 0;
  for (const auto& text : texts) sum += std::ssize(text);
  return sum;
}

EmbeddingCall read_embeddings(std::string_view body, const ModelFacts& facts, const LoadedEncoder& encoder) {
  const auto json = io::parse_ordered_json(body, "the request");
  Fields fields(json, "the request");
  adapter_of(fields, facts);  // an encoder has none
  EmbeddingCall call;
  const auto form = fields.text("encoding_format").value_or("float");
  if (form != "float" && form != "base64") fields.wrong("encoding_format", "\"float\" or \"base64\"", form);
  call.base64 = form == "base64";
  call.dimensions = fields.integer("dimensions", 1, encoder.model().config().width).value_or(0);
  call.texts = texts_of(fields, facts, encoder, fields.flag("truncate", false));
  fields.text("user");  // says who asks, and changes nothing
  fields.end();
  return call;
}

std::string json_list(std::span<const float> vector) { return fmt::format("[{}]", fmt::join(vector, ",")); }

std::string embeddings_body(const EmbeddingCall& call, std::span<const std::vector<float>> vectors,
                            const std::string& model) {
  std::string data;
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const auto v = call.dimensions > 0 ? infer::shortened(vectors[i], call.dimensions) : vectors[i];
    data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i > 0 ? "," : "", i,
                        call.base64 ? fmt::format("\"{}\"", base64(v)) : json_list(v));
  }
  const Json usage{{"prompt_tokens", call.tokens()}, {"total_tokens", call.tokens()}};
  return fmt::format(R"({{"object":"list","data":[{}],"model":{},"usage":{}}})", data,
                     Json(model).dump(-1, ' ', false, Json::error_handler_t::replace), usage.dump());
}

}  // namespace hpcdl::serve
