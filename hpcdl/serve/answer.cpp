#include "hpcdl/serve/answer.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>

#include "hpcdl/io/unicode.h"

namespace hpcdl::serve {

namespace {

std::string text_of(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::mt19937_64 id_source{std::random_device()()};  // of the thread of the server

/// Nine letters and digits: what Mistral's templates accept.
std::string new_call_id() {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id(9, ' ');
  for (char& c : id) c = kLetters[id_source() % kLetters.size()];
  return id;
}

std::string new_id(bool chat) {
  return fmt::format("{}-{:016x}{:016x}", chat ? "chatcmpl" : "cmpl", id_source(), id_source());
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

struct Answer::Choice {
  Choice(const io::Tokenizer& tokenizer, const Call& call)
      : decoder(tokenizer), stop(call.stop), tools(call.tools.format, call.tools.forced != nullptr) {}
  io::StreamDecoder decoder;
  StopText stop;
  ToolText tools;
  std::vector<ToolCall> calls;  // so far; in a stream: what has not been sent
  std::size_t called = 0;       // calls before these
  std::string text;             // so far; in a stream: what has not been sent
  std::size_t decoded = 0;      // characters of all tokens
  std::vector<Json> logprobs;   // of the tokens that belong to `text`
  int tokens = 0;
  bool ended = false, enough = false;  // enough: its further tokens are not wanted
  std::string finish_reason;           // "": it goes on
  Json prompt_logprobs;
  Clock::time_point last;
};

Answer::Answer(Call call, std::shared_ptr<Exchange> exchange, const ModelFacts& model, Metrics& metrics)
    : call_(std::move(call)),
      exchange_(std::move(exchange)),
      model_(model),
      metrics_(metrics),
      id_(new_id(call_.chat)),
      created_(std::time(nullptr)),
      begun_(call_.choices()),
      left_(call_.choices()) {
  for (std::size_t i = 0; i < call_.choices(); ++i) {
    choices_.emplace_back(model_.tokenizer, call_);
    if (call_.echo) choices_.back().text = call_.prompts[i / static_cast<std::size_t>(call_.n)].text;
    choices_.back().decoded = characters(choices_.back().text);
  }
}

Answer::~Answer() = default;

bool Answer::has_token(std::size_t choice) const { return choices_[choice].tokens > 0; }

/// As one entry of "logprobs": of chats as they answer it, of completions with the position of the token in the text.
Json Answer::logprob(const Choice& c, const infer::Token& token) const {
  const auto one = [&](std::int32_t id, float logprob) {
    const auto bytes = model_.tokenizer.bytes_of(id);
    Json entry{{"token", io::replace_invalid_utf8(bytes)}, {"logprob", logprob}};
    if (call_.chat)
      for (const char b : bytes) entry["bytes"].push_back(static_cast<unsigned char>(b));
    return entry;
  };
  auto entry = one(token.id, token.logprob);
  auto& top = entry["top_logprobs"] = Json::array();
  for (const auto& t : token.top)  // an id that the tokenizer lacks has no text
    if (t.id < model_.tokenizer.vocab_size()) top.push_back(one(t.id, t.logprob));
  if (!call_.chat) entry["text_offset"] = c.decoded;
  return entry;
}

Json Answer::logprobs(const Choice& c) const {
  if (call_.request.sampling.logprobs < 0) return nullptr;
  if (call_.chat) return {{"content", c.logprobs}};
  Json list{{"tokens", Json::array()},
            {"token_logprobs", Json::array()},
            {"top_logprobs", Json::array()},
            {"text_offset", Json::array()}};
  for (const auto& entry : c.logprobs) {
    auto top = Json::object();
    for (const auto& t : entry["top_logprobs"]) top[t["token"].get<std::string>()] = t["logprob"];
    list["tokens"].push_back(entry["token"]), list["token_logprobs"].push_back(entry["logprob"]);
    list["top_logprobs"].push_back(std::move(top)), list["text_offset"].push_back(entry["text_offset"]);
  }
  return list;
}

bool Answer::token(std::size_t index, const infer::Token& token) {
  auto& c = choices_[index];
  if (c.ended || c.enough || complete_) return true;
  const auto now = Clock::now();
  if (c.tokens++ == 0) metrics_.first_token.add(seconds_since(begin_));
  else metrics_.between_tokens.add(std::chrono::duration<double>(now - c.last).count());
  c.last = now;
  ++metrics_.new_tokens;
  if (call_.request.sampling.logprobs >= 0) c.logprobs.push_back(logprob(c, token));
  auto text = c.decoder.push(token.id);
  c.decoded += characters(text);
  if (call_.tools.any() && token.id == model_.tool_marker) text = tool_marker(call_.tools.format);
  take(c, c.tools.push(c.stop.push(text)));
  const bool enough = !call_.tools.parallel && c.called + c.calls.size() > 0;
  if (c.stop.stopped() || enough) {
    take(c, c.tools.finish());
    c.finish_reason = c.called + c.calls.size() > 0 ? "tool_calls" : "stop";
    c.enough = true;
    if (call_.stream) send(index);
    return false;
  }
  if (call_.stream && (!c.text.empty() || !c.calls.empty())) send(index);
  return true;
}

void Answer::take(Choice& c, ToolText::Part part) const {
  c.text += part.content;
  std::ranges::move(part.calls, std::back_inserter(c.calls));
  if (!call_.tools.parallel && c.called + c.calls.size() > 1) c.calls.resize(c.called > 0 ? 0 : 1);
}

void Answer::end(std::size_t index, const infer::End& end) {
  using Reason = infer::End::Reason;
  auto& c = choices_[index];
  metrics_.add(end);
  if (c.ended || complete_) return;
  if (end.reason == Reason::failed) return fail(500, end.message);
  c.ended = true;
  if (index % static_cast<std::size_t>(call_.n) == 0) cached_ += end.stats.cached_tokens;
  if (call_.request.prompt_logprobs >= 0) {
    c.prompt_logprobs = Json::array({nullptr});  // nothing comes before the first token
    for (const auto& t : end.prompt_logprobs) c.prompt_logprobs.push_back(logprob(c, t));
  }
  if (!c.enough) {
    take(c, c.tools.push(c.stop.push(c.decoder.finish())));
    take(c, c.tools.push(c.stop.finish()));
    take(c, c.tools.finish());
    c.finish_reason = end.reason == Reason::length && !c.stop.stopped() ? "length"
                      : c.called + c.calls.size() > 0                   ? "tool_calls"
                                                                        : "stop";
    if (call_.stream) send(index);
  }
  if (--left_ == 0) finish();
}

void Answer::fail(int status, std::string_view message) {
  if (std::exchange(complete_, true)) return;
  if (!streams_) return exchange_->answer(status, "application/json", error_body(status, message));
  exchange_->event(error_body(status, message));
  exchange_->event("[DONE]");
  exchange_->end_events();
}

Json Answer::head(const char* kind) const {
  return {{"id", id_}, {"object", kind}, {"created", created_}, {"model", model_.name_with(call_.request.adapter)}};
}

Json Answer::usage() const {
  std::int64_t prompt = 0, added = 0;
  for (const auto& p : call_.prompts) prompt += std::ssize(p.ids);
  for (const auto& c : choices_) added += c.tokens;
  return {{"prompt_tokens", prompt},
          {"completion_tokens", added},
          {"total_tokens", prompt + added},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

/// Calls in a stream have numbers, by which clients tell parts of one from parts of another; each is sent as a whole.
Json Answer::tool_calls(const Choice& c) const {
  auto list = Json::array();
  for (std::size_t i = 0; i < c.calls.size(); ++i) {
    Json call{{"id", new_call_id()},
              {"type", "function"},
              {"function", {{"name", c.calls[i].name}, {"arguments", c.calls[i].arguments}}}};
    if (call_.stream) call["index"] = c.called + i;
    list.push_back(std::move(call));
  }
  return list;
}

/// What a choice has to say, whole or since its last event.
Json Answer::choice(std::size_t index) const {
  const auto& c = choices_[index];
  Json out{{"index", index}};
  if (!call_.chat) {
    out["text"] = c.text;
  } else if (!call_.stream) {
    out["message"] = {{"role", "assistant"}, {"content", c.calls.empty() || !c.text.empty() ? Json(c.text) : Json()}};
    if (!c.calls.empty()) out["message"]["tool_calls"] = tool_calls(c);
  } else {
    auto& delta = out["delta"] = Json::object();
    if (!begun_[index]) delta["role"] = "assistant";
    if (!c.text.empty() || (!begun_[index] && c.calls.empty())) delta["content"] = c.text;
    if (!c.calls.empty()) delta["tool_calls"] = tool_calls(c);
  }
  out["logprobs"] = logprobs(c);
  out["finish_reason"] = c.finish_reason.empty() ? Json() : Json(c.finish_reason);
  if (!c.prompt_logprobs.is_null()) out["prompt_logprobs"] = c.prompt_logprobs;
  return out;
}

void Answer::event(Json body) {
  if (!std::exchange(streams_, true)) exchange_->start_events();
  exchange_->event(text_of(body));
}

void Answer::send(std::size_t index) {
  auto body = head(call_.chat ? "chat.completion.chunk" : "text_completion");
  body["choices"] = Json::array({choice(index)});
  if (call_.include_usage) body["usage"] = nullptr;
  event(std::move(body));
  begun_[index] = true;
  auto& c = choices_[index];
  c.called += c.calls.size();
  c.text.clear(), c.logprobs.clear(), c.calls.clear();
}

void Answer::finish() {
  complete_ = true;
  if (call_.stream) {
    if (call_.include_usage) {
      auto body = head(call_.chat ? "chat.completion.chunk" : "text_completion");
      body["choices"] = Json::array(), body["usage"] = usage();
      event(std::move(body));
    }
    exchange_->event("[DONE]");
    return exchange_->end_events();
  }
  auto body = head(call_.chat ? "chat.completion" : "text_completion");
  body["choices"] = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) body["choices"].push_back(choice(i));
  body["usage"] = usage();
  exchange_->answer(200, "application/json", text_of(body));
}

}  // namespace hpcdl::serve
