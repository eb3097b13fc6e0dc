#include "cli/generated_text.h"

#include <utility>

namespace hpcdl::cli {
namespace {

Json json_of(const infer::Token& t) {
  Json one{{"id", t.id}, {"logprob", t.logprob}};
  if (t.top.empty()) return one;
  auto& top = one["top"] = Json::array();
  for (const auto& other : t.top) top.push_back({{"id", other.id}, {"logprob", other.logprob}});
  return one;
}

Json json_of(const std::vector<infer::Token>& tokens) {
  Json list = Json::array();
  for (const auto& t : tokens) list.push_back(json_of(t));
  return list;
}

}  // namespace

GeneratedText::GeneratedText(const io::Tokenizer* tokenizer, const std::vector<std::string>& stop) : stop_(stop) {
  if (tokenizer) decoder_.emplace(*tokenizer);
}

std::string GeneratedText::take(std::string part) {
  text_ += part;
  return part;
}

std::string GeneratedText::add(const infer::Token& token) {
  ids_.push_back(token.id), tokens_.push_back(token);
  if (decoder_) return take(stop_.push(decoder_->push(token.id)));
  return take(fmt::format("{}{}", ids_.size() > 1 ? "," : "", token.id));
}

std::string GeneratedText::finish(const infer::End& end) {
  if (end.reason == infer::End::Reason::failed) throw Error(end.message);
  end_ = end;
  if (!decoder_) return {};
  auto rest = stop_.push(decoder_->finish());
  rest += stop_.finish();
  return take(std::move(rest));
}

std::string_view GeneratedText::reason() const {
  using Reason = infer::End::Reason;
  return end_->reason == Reason::eos ? "eos" : end_->reason == Reason::stop ? "stop" : "length";
}

void GeneratedText::add_logprobs(const GenerateOptions& o, Json& to) const {
  if (o.sampling.options.logprobs >= 0) to["logprobs"] = json_of(tokens_);
  if (o.prompt_logprobs >= 0) to["prompt_logprobs"] = json_of(end_->prompt_logprobs);
}

infer::Request request_of(const Generating& g, std::vector<std::int32_t> prompt, int tokens, std::size_t index) {
  auto sampling = g.options.sampling.options;
  sampling.seed += index;  // equal prompts get different texts
  return {.prompt = std::move(prompt),
          .tokens = tokens,
          .sampling = std::move(sampling),
          .prompt_logprobs = g.options.prompt_logprobs,
          .constraint = g.constraint()};
}

}  // namespace hpcdl::cli
