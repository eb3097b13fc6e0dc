#include "hpcdl/serve/openai.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <random>

#include "hpcdl/io/json.h"

namespace hpcdl::serve {

namespace {

constexpr std::int64_t kMostChoices = 128, kMostStops = 16, kMostLogprobs = 20, kMostBiases = 1024;
constexpr std::size_t kLongestStop = 1024;
constexpr std::int64_t kSomeTokens = 16;  // of a completion that does not say how many
constexpr const char* kRequest = "the request";

Json parsed(std::string_view body) { return io::parse_ordered_json(body, kRequest); }

/// A text of so many bytes has more tokens than the context: encoding it to say so would take long.
void check_length(std::size_t bytes, const ModelFacts& model) {
  if (bytes / model.longest_token > static_cast<std::size_t>(model.longest()))
    throw Refusal(
        400,
        fmt::format("the prompt has {} bytes: these are more than the {} tokens of the context", bytes, model.context),
        "context_length_exceeded");
}

std::vector<std::int32_t> encoded(std::string_view text, const ModelFacts& model) {
  check_length(text.size(), model);
  return encode_prompt(model.tokenizer, text);
}

std::vector<Prompt> prompts_of(Fields& fields, const ModelFacts& model) {
  constexpr const char *kName = "prompt", *kExpected = "a string, token ids, or a list of these";
  const auto* value = fields.find(kName);
  if (!value) throw Refusal(400, "the request has no \"prompt\"");
  const auto of_text = [&](const Json& v) {
    auto text = v.get<std::string>();
    return Prompt{encoded(text, model), text};
  };
  const auto of_ids = [&](const Json& v) {
    if (v.empty()) fields.wrong(kName, "at least one token", v);
    return Prompt{token_ids(fields, kName, v, std::min<std::int64_t>(model.vocab, model.tokenizer.vocab_size())), ""};
  };
  if (value->is_string()) return {of_text(*value)};
  if (!value->is_array() || value->empty()) fields.wrong(kName, kExpected, *value);
  if (value->front().is_number()) return {of_ids(*value)};
  if (std::ssize(*value) > kMostChoices) fields.wrong(kName, fmt::format("at most {} prompts", kMostChoices), *value);
  std::vector<Prompt> list;
  for (const auto& v : *value) {
    if (!v.is_string() && !v.is_array()) fields.wrong(kName, kExpected, v);
    list.push_back(v.is_string() ? of_text(v) : of_ids(v));
  }
  return list;
}

std::vector<std::string> stops_of(Fields& fields) {
  const auto* value = fields.find("stop");
  if (!value) return {};
  const auto expected = fmt::format("a string, or a list of at most {}, of 1 to {} bytes", kMostStops, kLongestStop);
  const auto list = value->is_string() ? Json::array({*value}) : *value;
  if (!list.is_array() || std::ssize(list) > kMostStops) fields.wrong("stop", expected, *value);
  std::vector<std::string> stops;
  for (const auto& s : list) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > kLongestStop)
      fields.wrong("stop", expected, s);
    stops.push_back(s.get<std::string>());
  }
  return stops;
}

std::map<std::int32_t, float> biases_of(Fields& fields, std::int64_t vocab) {
  const auto* value = fields.find("logit_bias");
  if (!value) return {};
  const auto expected = fmt::format("an object of at most {} token ids with numbers from -100 to 100", kMostBiases);
  if (!value->is_object() || std::ssize(*value) > kMostBiases) fields.wrong("logit_bias", expected, *value);
  std::map<std::int32_t, float> biases;
  for (const auto& [key, bias] : value->items()) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab || !bias.is_number() ||
        !(std::abs(bias.get<double>()) <= 100))
      fields.wrong("logit_bias", expected, Json{{key, bias}}.dump());
    biases[id] = bias.get<float>();
  }
  return biases;
}

std::vector<std::int32_t> ids_of(Fields& fields, const char* name, std::int64_t vocab) {
  const auto* value = fields.find(name);
  if (!value) return {};
  if (!value->is_array()) fields.wrong(name, "a list of token ids", *value);
  return token_ids(fields, name, *value, vocab);
}

infer::SamplingOptions sampling_of(Fields& fields, const ModelFacts& model) {
  const auto& d = model.sampling;
  const auto number = [&](const char* name, double least, double most, double otherwise) {
    return static_cast<float>(fields.number(name, least, most).value_or(otherwise));
  };
  infer::SamplingOptions s;
  s.temperature = number("temperature", 0, 100, d.temperature);
  s.top_k = static_cast<int>(fields.integer("top_k", -1, 1 << 24).value_or(d.top_k));
  s.top_k = std::max(s.top_k, 0);  // -1 also stands for all
  s.top_p = number("top_p", 0, 1, d.top_p);
  s.min_p = number("min_p", 0, 1, d.min_p);
  s.typical_p = number("typical_p", 0, 1, d.typical_p);
  s.repetition_penalty = number("repetition_penalty", 0.01, 100, d.repetition_penalty);
  s.presence_penalty = number("presence_penalty", -2, 2, 0);
  s.frequency_penalty = number("frequency_penalty", -2, 2, 0);
  s.logit_bias = biases_of(fields, model.vocab);
  s.allowed_ids = ids_of(fields, "allowed_token_ids", model.vocab);
  s.banned_ids = ids_of(fields, "banned_token_ids", model.vocab);
  s.stop_ids = ids_of(fields, "stop_token_ids", model.vocab);
  s.ignore_eos = fields.flag("ignore_eos", false);
  s.min_tokens = static_cast<int>(fields.integer("min_tokens", 0, model.longest()).value_or(d.min_tokens));
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  s.seed =
      seed ? static_cast<std::uint64_t>(*seed) : std::random_device()() | std::uint64_t{std::random_device()()} << 32;
  s.check(model.vocab);
  return s;
}

/// Fields that say who asks or what to keep: they change no text, and are taken where they ask for nothing else.
void read_bookkeeping(Fields& fields, std::int64_t n) {
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) fields.text(name);
  if (const auto* metadata = fields.find("metadata"); metadata && !metadata->is_object())
    fields.wrong("metadata", "an object", *metadata);
  if (fields.flag("store", false)) fields.wrong("store", "false: this server keeps no answers", Json(true));
  if (const auto tier = fields.text("service_tier"); tier && *tier != "auto" && *tier != "default")
    fields.wrong("service_tier", "auto or default: there is one tier", Json(*tier));
  if (const auto best = fields.integer("best_of", 1, kMostChoices); best && *best != n)
    fields.wrong("best_of", fmt::format("n, which is {}: all texts are answered", n), Json(*best));
}

/// The form of "response_format"; null: any text.
std::shared_ptr<const infer::Grammar> format_of(Fields& fields, Constraints& constraints) {
  const auto* value = fields.find("response_format");
  if (!value) return nullptr;
  Fields format(*value, "response_format");
  const auto type = format.text("type").value_or("");
  std::shared_ptr<const infer::Grammar> grammar;
  if (type == "json_schema") {
    const auto* named = format.find("json_schema");
    if (!named) throw Refusal(400, "response_format: expected \"json_schema\" with a \"schema\"");
    Fields inner(*named, "json_schema");
    inner.text("name"), inner.text("description"), inner.flag("strict", true);
    const auto* schema = inner.find("schema");
    if (!schema) throw Refusal(400, "json_schema: expected a \"schema\"");
    inner.end();
    grammar = constraints.grammar(Form::json_schema, schema->dump());
  } else if (type == "json_object") {
    grammar = constraints.grammar(Form::json_object, "");
  } else if (type != "text") {
    throw Refusal(400, fmt::format("response_format: expected the type text, json_object or json_schema, found {}",
                                   io::shown(type)));
  }
  format.end();
  return grammar;
}

/// The form that the texts must have, if any.
void read_form(Fields& fields, const ModelFacts& model, Call& call) {
  auto& constraints = *model.constraints;
  auto grammar = format_of(fields, constraints);
  int forms = grammar != nullptr;
  for (const auto& [name, form] : {std::pair("regex", Form::regex), std::pair("grammar", Form::gbnf)})
    if (const auto text = fields.text(name)) grammar = constraints.grammar(form, *text), ++forms;
  if (forms > 1) throw Refusal(400, "\"response_format\", \"regex\" and \"grammar\" exclude each other: give one");
  if (grammar && call.tools.forced)
    throw Refusal(400, "\"tool_choice\" requires a call, which has a form of its own: leave out the other one");
  if (!grammar) grammar = call.tools.forced;
  if (!grammar) return;
  if (call.request.sampling.ignore_eos)
    throw Refusal(400, "\"ignore_eos\": a text that must have a form ends where the form does");
  call.constraint = [kept = model.constraints, grammar] { return kept->constrain(grammar); };
}

/// What both kinds of calls share, once the prompts are known.
void read_common(Fields& fields, const ModelFacts& model, Call& call, std::optional<std::int64_t> asked) {
  call.request.adapter = adapter_of(fields, model);
  call.n = fields.integer("n", 1, kMostChoices).value_or(1);
  if (std::ssize(call.prompts) * call.n > kMostChoices)
    throw Refusal(
        400, fmt::format("{} prompts with n = {} are more than {} choices", call.prompts.size(), call.n, kMostChoices));
  call.stream = fields.flag("stream", false);
  if (const auto* options = fields.find("stream_options")) {
    Fields inner(*options, "stream_options");
    call.include_usage = inner.flag("include_usage", false);
    inner.end();
    if (!call.stream) throw Refusal(400, "\"stream_options\" are for \"stream\": true");
  }
  call.stop = stops_of(fields);
  call.request.sampling = sampling_of(fields, model);
  call.request.prompt_logprobs = static_cast<int>(fields.integer("prompt_logprobs", 0, kMostLogprobs).value_or(-1));
  if (call.stream && call.request.prompt_logprobs >= 0)
    throw Refusal(400, "\"prompt_logprobs\" are not for \"stream\": true");
  call.request.priority = static_cast<int>(fields.integer("priority", -1'000'000, 1'000'000).value_or(0));
  call.request.cache_salt = fields.text("cache_salt").value_or("");
  read_form(fields, model, call);
  read_bookkeeping(fields, call.n);

  std::int64_t longest = 0;
  for (const auto& p : call.prompts) longest = std::max(longest, std::ssize(p.ids));
  const auto room = model.longest() - longest;
  if (room < 1 || (asked && *asked > room))
    throw Refusal(400,
                  fmt::format("{} prompt tokens and {} new ones do not fit into the context of {}", longest,
                              asked.value_or(1), model.context),
                  "context_length_exceeded");
  const auto unsaid = model.sampling.max_tokens > 0 ? model.sampling.max_tokens
                      : call.chat                   ? std::min(room, model.context)
                                                    : kSomeTokens;
  call.request.tokens = static_cast<int>(asked.value_or(std::min<std::int64_t>(unsaid, room)));
}

/// The text of a message: a string, or parts of text.
Json flattened(Json message) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return message;
  std::string text;
  for (const auto& part : *content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.contains("text") ||
        !part["text"].is_string())
      throw Refusal(400, "messages: expected parts {\"type\": \"text\", \"text\": ...}: this model reads text only");
    text += part["text"].get_ref<const std::string&>();
  }
  *content = text;
  return message;
}

Json messages_of(Fields& fields) {
  const auto* value = fields.find("messages");
  if (!value) throw Refusal(400, "the request has no \"messages\"");
  if (!value->is_array() || value->empty()) fields.wrong("messages", "a list of at least one message", *value);
  auto messages = Json::array();
  for (const auto& m : *value) {
    if (!m.is_object() || !m.value("role", Json()).is_string()) fields.wrong("messages", "objects with a \"role\"", m);
    messages.push_back(flattened(m));
    parse_arguments(messages.back());
  }
  return messages;
}

/// The prompt that the template makes of the messages.
Prompt chat_prompt(Fields& fields, const ModelFacts& model, const ToolUse& use) {
  const auto messages = messages_of(fields);
  auto variables = Json();
  if (const auto* v = fields.find("chat_template_kwargs")) {
    if (!v->is_object()) fields.wrong("chat_template_kwargs", "an object", *v);
    variables = *v;
  }
  if (!model.chat) throw Refusal(400, model.no_chat);
  std::size_t bytes = 0;
  for (const auto& m : messages)
    if (const auto c = m.find("content"); c != m.end() && c->is_string())
      bytes += c->get_ref<const std::string&>().size();
  check_length(bytes, model);
  Prompt p;
  p.text = io::chat_prompt(*model.chat, messages, use.tools, fields.flag("add_generation_prompt", true), variables);
  p.text += use.begins;
  check_length(p.text.size(), model);
  p.ids = model.tokenizer.encode(p.text);
  if (p.ids.empty()) throw Refusal(400, "the chat template makes an empty prompt of these messages");
  return p;
}

}  // namespace

std::int32_t adapter_called(std::string_view name, const ModelFacts& model) {
  if (name == model.name) return -1;
  const auto& all = model.adapters;
  const auto found = std::ranges::find(all, name);
  if (found == all.end())
    throw Refusal(404,
                  fmt::format("the model {} does not exist; this server has {}{}{}", io::shown(std::string(name)),
                              model.name, all.empty() ? "" : ", ", fmt::join(all, ", ")),
                  "model_not_found");
  return static_cast<std::int32_t>(found - all.begin());
}

std::int32_t adapter_of(Fields& fields, const ModelFacts& model) {
  const auto name = fields.text("model");
  return name ? adapter_called(*name, model) : -1;
}

std::vector<std::int32_t> token_ids(Fields& fields, const char* name, const Json& list, std::int64_t vocab) {
  std::vector<std::int32_t> ids;
  for (const auto& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab))
      fields.wrong(name, fmt::format("token ids from 0 to {}", vocab - 1), id);
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::string error_body(int status, std::string_view message, std::string_view code) {
  if (message.starts_with('['))  // the area of an Error
    if (const auto end = message.find("] "); end != message.npos) message.remove_prefix(end + 2);
  const auto* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  const Json body{
      {"error",
       {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code.empty() ? Json() : Json(code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

infer::Request Call::of_choice(std::size_t index) const {
  auto r = request;
  const auto each = static_cast<std::size_t>(n);
  r.prompt = prompts[index / each].ids;
  r.sampling.seed += index % each;
  if (constraint) r.constraint = constraint();
  return r;
}

Call read_completion(std::string_view body, const ModelFacts& model) {
  const auto json = parsed(body);
  Fields fields(json, kRequest);
  Call call;
  call.prompts = prompts_of(fields, model);
  read_common(fields, model, call, fields.integer("max_tokens", 1, INT32_MAX));
  call.request.sampling.logprobs = static_cast<int>(fields.integer("logprobs", 0, kMostLogprobs).value_or(-1));
  call.echo = fields.flag("echo", false);
  if (call.stream && call.echo) throw Refusal(400, "\"echo\" is not for \"stream\": true");
  if (call.echo && call.request.sampling.logprobs >= 0)
    throw Refusal(400, "\"echo\" with \"logprobs\" is not supported: ask for \"prompt_logprobs\"");
  for (auto& p : call.prompts)
    if (call.echo && p.text.empty()) p.text = model.tokenizer.decode(p.ids);
  fields.end();
  return call;
}

Call read_chat(std::string_view body, const ModelFacts& model) {
  const auto json = parsed(body);
  Fields fields(json, kRequest);
  Call call;
  call.chat = true;
  call.tools = read_tools(fields, model);
  call.prompts.push_back(chat_prompt(fields, model, call.tools));
  const auto newer = fields.integer("max_completion_tokens", 1, INT32_MAX),
             older = fields.integer("max_tokens", 1, INT32_MAX);
  if (newer && older && *newer != *older)
    throw Refusal(400, "\"max_tokens\" and \"max_completion_tokens\" differ: give one");
  read_common(fields, model, call, newer ? newer : older);
  const bool logprobs = fields.flag("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
  if (top && !logprobs) throw Refusal(400, "\"top_logprobs\" needs \"logprobs\": true");
  call.request.sampling.logprobs = logprobs ? static_cast<int>(top.value_or(0)) : -1;
  fields.end();
  return call;
}

Json tokenize(std::string_view body, const ModelFacts& model) {
  const auto json = parsed(body);
  Fields fields(json, kRequest);
  const auto text = fields.text("prompt");
  const bool special = fields.flag("add_special_tokens", true);
  const auto ids =
      text ? model.tokenizer.encode(*text, special) : chat_prompt(fields, model, read_tools(fields, model)).ids;
  fields.text("model");
  fields.end();
  return {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.context}};
}

Json detokenize(std::string_view body, const ModelFacts& model) {
  const auto json = parsed(body);
  Fields fields(json, kRequest);
  if (!fields.has("tokens")) throw Refusal(400, "the request has no \"tokens\"");
  const auto ids = ids_of(fields, "tokens", model.tokenizer.vocab_size());
  fields.text("model");
  fields.end();
  return {{"prompt", model.tokenizer.decode(ids)}};
}

}  // namespace hpcdl::serve
