// Texts that an engine generates, as iterators.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "hpcdl/infer/engine.h"
#include "hpcdl/infer/generation_config.h"
#include "hpcdl/io/config_table.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/serve/served_model.h"
#include "hpcdl/serve/stop_text.h"
#include "python/src/arguments.h"
#include "python/src/bind.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

namespace nb = nanobind;

constexpr std::string_view kOp = "Engine.submit";
constexpr int kSomeTokens = 100;

/// A model and its engine. Python threads take turns: each steps the engine, for all texts, until its own text has a
/// token. No thread waits for the turn with the GIL held.
struct Loaded {
  explicit Loaded(const serve::ServerConfig& config)
      : defaults(infer::read_generation_config(io::find_model_folder(config.engine.model))),
        served(config),
        engine(served.model(), served.pool(), served.engine_options()) {}
  std::mutex turn;
  infer::GenerationConfig defaults;
  serve::ServedModel served;
  infer::Engine engine;
};

/// What a text becomes up to a stop string.
struct Stopping {
  Stopping(const io::Tokenizer& tokenizer, const std::vector<std::string>& strings)
      : decoder(tokenizer), stop(strings) {}
  io::StreamDecoder decoder;
  serve::StopText stop;
  std::string text;
};

struct TextState {
  std::deque<infer::Token> tokens;  // that the caller has not taken
  std::optional<infer::End> end;
  std::optional<Stopping> stopping;  // null: no string ends it

  /// Takes a token; false if a stop string has occurred.
  bool add(const infer::Token& t) {
    tokens.push_back(t);
    if (!stopping) return true;
    stopping->text += stopping->stop.push(stopping->decoder.push(t.id));
    return !stopping->stop.stopped();
  }
  void finish(const infer::End& e) {
    end = e;
    if (!stopping) return;
    stopping->text += stopping->stop.push(stopping->decoder.finish());
    stopping->text += stopping->stop.finish();
  }
};

class Text {
 public:
  Text(std::shared_ptr<Loaded> loaded, infer::Request request, const std::vector<std::string>& stop)
      : loaded_(std::move(loaded)), state_(std::make_shared<TextState>()) {
    if (!stop.empty()) state_->stopping.emplace(loaded_->served.facts().tokenizer, stop);
    request.on_token = [s = state_](const infer::Token& t) { return s->add(t); };
    request.on_end = [s = state_](const infer::End& e) { s->finish(e); };
    const std::lock_guard lock(loaded_->turn);
    id_ = loaded_->engine.submit(std::move(request));
  }
  ~Text() { cancel(); }
  Text(const Text&) = delete;

  /// None after the last token.
  std::optional<infer::Token> next() {
    const std::lock_guard lock(loaded_->turn);
    while (state_->tokens.empty() && !state_->end)
      require(loaded_->engine.step() || state_->end, "Engine", "the text was lost because another one failed");
    if (state_->tokens.empty()) {
      require(state_->end->reason != infer::End::Reason::failed, "Engine", "{}", state_->end->message);
      return {};
    }
    auto token = std::move(state_->tokens.front());
    state_->tokens.pop_front();
    return token;
  }
  void cancel() {
    const std::lock_guard lock(loaded_->turn);
    if (!state_->end) loaded_->engine.cancel(id_);
  }
  const std::optional<infer::End>& end() const { return state_->end; }
  /// What there is before a stop string; nothing if no string ends the text.
  std::optional<std::string> stopped_text() const {
    return state_->stopping ? std::optional(state_->stopping->text) : std::nullopt;
  }

 private:
  std::shared_ptr<Loaded> loaded_;
  std::shared_ptr<TextState> state_;
  infer::RequestId id_ = 0;
};

std::vector<std::int32_t> ids_of(std::string_view name, nb::handle list) {
  require_type(PySequence_Check(list.ptr()) && !PyUnicode_Check(list.ptr()), kOp,
               "{} must be a list of token ids, got {}", name, kind_of(list));
  std::vector<std::int32_t> ids;
  for (const nb::handle item : nb::borrow<nb::sequence>(list)) {
    const auto id = integer(kOp, name, item);
    require(id >= 0 && id <= INT32_MAX, kOp, "{} must hold token ids, got {}", name, id);
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

/// The options of sampling, by the names of their fields.
infer::SamplingOptions sampling_of(const nb::dict& given, infer::SamplingOptions o) {
  using Set = std::function<void(std::string_view, nb::handle)>;
  const auto real = [](float& f) -> Set { return [&f](auto name, auto v) { f = number(kOp, name, v); }; };
  const auto whole = [](auto& i) -> Set {
    return [&i](auto name, auto v) {
      const auto n = integer(kOp, name, v);
      i = static_cast<std::remove_reference_t<decltype(i)>>(n);
      require(static_cast<std::int64_t>(i) == n, kOp, "{} = {} is out of range", name, n);
    };
  };
  const auto list = [](std::vector<std::int32_t>& l) -> Set {
    return [&l](auto name, auto v) { l = ids_of(name, v); };
  };
  const std::vector<std::pair<std::string_view, Set>> fields{
      {"temperature", real(o.temperature)},
      {"top_k", whole(o.top_k)},
      {"top_p", real(o.top_p)},
      {"min_p", real(o.min_p)},
      {"typical_p", real(o.typical_p)},
      {"repetition_penalty", real(o.repetition_penalty)},
      {"presence_penalty", real(o.presence_penalty)},
      {"frequency_penalty", real(o.frequency_penalty)},
      {"logit_bias",
       [&](auto name, auto v) {
         require_type(nb::isinstance<nb::dict>(v), kOp, "{} must be a dict of token ids and numbers, got {}", name,
                      kind_of(v));
         for (const auto [id, bias] : nb::borrow<nb::dict>(v))
           o.logit_bias[static_cast<std::int32_t>(integer(kOp, name, id))] = number(kOp, name, bias);
       }},
      {"allowed_ids", list(o.allowed_ids)},
      {"banned_ids", list(o.banned_ids)},
      {"min_tokens", whole(o.min_tokens)},
      {"stop_ids", list(o.stop_ids)},
      {"ignore_eos", [&](auto name, auto v) { o.ignore_eos = flag(kOp, name, v); }},
      {"seed", whole(o.seed)},
      {"logprobs", whole(o.logprobs)},
  };
  for (const auto [key, value] : given) {
    const auto name = nb::cast<std::string>(key);
    const auto field = std::ranges::find(fields, name, &std::pair<std::string_view, Set>::first);
    if (field == fields.end()) {
      std::vector<std::string> known;
      for (const auto& f : fields) known.emplace_back(f.first);
      require_type(false, kOp, "no option \"{}\"{}", name, io::did_you_mean(name, known));
    }
    field->second(name, value);
  }
  return o;
}

/// An argument as the value of a key in a file would be; none: its default.
std::optional<io::ConfigValue> value_of(std::string_view name, nb::handle argument) {
  if (argument.is_none()) return {};
  if (nb::isinstance<nb::bool_>(argument)) return nb::cast<bool>(argument);
  if (nb::isinstance<nb::str>(argument)) return nb::cast<std::string>(argument);
  if (PyFloat_Check(argument.ptr())) return nb::cast<double>(argument);
  return integer("Engine", name, argument);
}

/// The arguments of hpcdl.Engine that are not called like their keys in the section [engine] of a server.
constexpr std::pair<std::string_view, std::string_view> kKeys[] = {{"texts", "batch"}};

/// `options`: keys of the section [engine], and their values.
serve::EngineSection section_of(const nb::dict& options) {
  serve::EngineSection section;
  io::ConfigTable table(section);
  for (const auto [key, argument] : options) {
    const auto name = nb::cast<std::string>(key);
    const auto* const other = std::ranges::find(kKeys, name, &std::pair<std::string_view, std::string_view>::first);
    if (const auto value = value_of(name, argument))
      table.set(other == std::end(kKeys) ? name : other->second, *value, fmt::format("Engine({})", name));
  }
  return section;
}

std::shared_ptr<Loaded> load_engine(const nb::dict& options) {
  const serve::ServerConfig config{.serve = {}, .engine = section_of(options), .sampling = {}};
  const nb::gil_scoped_release released;
  return std::make_shared<Loaded>(config);
}

/// What constrains a text; null: nothing.
std::shared_ptr<infer::TokenConstraint> constraint_of(Loaded& l, const std::string& form, const std::string& text) {
  if (form.empty()) return nullptr;
  using enum serve::Form;
  auto& all = *l.served.facts().constraints;
  return all.constrain(all.grammar(form == "schema" ? json_schema : form == "regex" ? regex : gbnf, text));
}

std::shared_ptr<Text> submit(const std::shared_ptr<Loaded>& l, nb::handle prompt, std::optional<std::int64_t> asked,
                             const nb::dict& sampling, std::int64_t priority, const std::string& form,
                             const std::string& text, const std::vector<std::string>& stop,
                             std::int64_t prompt_logprobs, const std::string& cache_salt, std::uint64_t index) {
  infer::Request r;
  for (const auto& s : stop) require(!s.empty(), kOp, "stop: expected texts, found an empty one");
  require(prompt_logprobs >= -1 && prompt_logprobs <= INT32_MAX, kOp, "prompt_logprobs = {}: expected 0 or more",
          prompt_logprobs);
  r.prompt_logprobs = static_cast<int>(prompt_logprobs), r.cache_salt = cache_salt;
  r.prompt = ids_of("prompt", prompt);
  const auto room = l->served.facts().longest() - std::ssize(r.prompt);
  const auto tokens = asked.value_or(std::clamp<std::int64_t>(room, 1, l->defaults.max_tokens.value_or(kSomeTokens)));
  require(tokens >= 1 && tokens <= room, kOp, "tokens = {}: expected 1 to {}, what the context leaves", tokens, room);
  r.tokens = static_cast<int>(tokens), r.priority = static_cast<int>(priority);
  l->defaults.complete(r.sampling, [](auto) { return false; });
  r.sampling = sampling_of(sampling, r.sampling);
  r.sampling.seed += index;
  r.sampling.check(l->served.facts().vocab);
  const nb::gil_scoped_release released;
  r.constraint = constraint_of(*l, form, text);
  return std::make_shared<Text>(l, std::move(r), stop);
}

/// (id, logprob, [(id, logprob), ...]).
nb::object tuple_of(const infer::Token& token) {
  nb::list top;
  for (const auto& other : token.top) top.append(nb::make_tuple(other.id, other.logprob));
  return nb::make_tuple(token.id, token.logprob, top);
}

/// None after the last token.
nb::object next(Text& t) {
  const auto token = [&] {
    const nb::gil_scoped_release released;
    return t.next();
  }();
  return token ? tuple_of(*token) : nb::none();
}

/// Of the tokens of the prompt but the first, once the text has ended.
nb::list prompt_logprobs_of(const Text& t) {
  nb::list list;
  if (t.end())
    for (const auto& token : t.end()->prompt_logprobs) list.append(tuple_of(token));
  return list;
}

/// (reason, prompt tokens, new tokens, cached tokens, ms to the first token, tokens per second), or None.
nb::object end_of(const Text& t) {
  if (!t.end()) return nb::none();
  constexpr const char* kReasons[] = {"eos", "length", "stop", "cancelled", "failed"};
  const auto& s = t.end()->stats;
  return nb::make_tuple(kReasons[static_cast<int>(t.end()->reason)], s.prompt_tokens, s.new_tokens, s.cached_tokens,
                        s.time_to_first_token_ms, s.tokens_per_second);
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::class_<Text>(m, "_Text")
      .def("next", next, nb::sig("def next(self) -> typing.Any"))
      .def("prompt_logprobs", prompt_logprobs_of, nb::sig("def prompt_logprobs(self) -> typing.Any"))
      .def("stopped_text", &Text::stopped_text)
      .def("end", end_of, nb::sig("def end(self) -> typing.Any"))
      .def("cancel", &Text::cancel, nb::call_guard<nb::gil_scoped_release>(), nb::sig("def cancel(self) -> None"));
  nb::class_<Loaded>(m, "_Engine")
      .def_static("load", load_engine, nb::arg("options"))
      .def("submit", submit, nb::arg("prompt"), nb::arg("tokens").none(), nb::arg("sampling"), nb::arg("priority"),
           nb::arg("form"), nb::arg("text"), nb::arg("stop"), nb::arg("prompt_logprobs"), nb::arg("cache_salt"),
           nb::arg("index"))
      .def("encode", [](const Loaded& l,
                        const std::string& text) { return serve::encode_prompt(l.served.facts().tokenizer, text); })
      .def("chat",
           [](const Loaded& l, const std::string& messages, const std::string& tools, const std::string& kwargs) {
             const auto& f = l.served.facts();
             require(f.chat.has_value(), kOp, "{}", f.no_chat);
             const auto json = [](const std::string& s) { return io::parse_ordered_json(s, "messages"); };
             return f.tokenizer.encode(io::chat_prompt(*f.chat, json(messages), json(tools), true, json(kwargs)));
           })
      .def("decode", [](const Loaded& l, const std::vector<std::int32_t>& ids,
                        bool skip_special) { return l.served.facts().tokenizer.decode(ids, skip_special); })
      .def_prop_ro("warning", [](const Loaded& l) { return l.defaults.warning(); })
      .def_prop_ro("context", [](const Loaded& l) { return l.served.engine_options().context; })
      .def_prop_ro("vocab", [](const Loaded& l) { return l.served.facts().vocab; })
      .def("state", [](Loaded& l) {
        const auto s = [&] {
          const nb::gil_scoped_release released;
          const std::lock_guard lock(l.turn);
          return l.engine.state();
        }();
        return std::vector<std::int64_t>{s.waiting, s.running, s.pages, s.free_pages, s.cached_pages};
      });
}

}  // namespace hpcdl::python
