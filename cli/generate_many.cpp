// hpcdl generate --prompts: many texts, several at a time.

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/generate.h"
#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/serve/stop_text.h"

namespace hpcdl::cli {

namespace {

constexpr int kAtATime = 16;

struct Text {
  std::vector<std::int32_t> prompt, ids = {};
  int tokens = 0;             // new ones, at most
  std::int32_t adapter = -1;  // of the model; -1: none
  std::optional<infer::End> end = {};
  std::string text = {};
  std::optional<io::StreamDecoder> decoder = {};  // null: the model has no tokenizer
  std::optional<serve::StopText> stop = {};

  /// Takes a token; false if a stop string has occurred.
  bool add(std::int32_t id) {
    ids.push_back(id);
    if (decoder) text += stop->push(decoder->push(id));
    return !stop->stopped();
  }
  void finish(const infer::End& how) {
    if (decoder) text += stop->push(decoder->finish()), text += stop->finish();
    end = how;
  }
};

std::vector<std::int32_t> ids_of(const io::Json& list, const std::string& where) {
  const auto wrong = [&](std::string_view found) {
    fail("generate", "{}: expected \"prompt_ids\": [1, 2, 3], found {}", where, found);
  };
  if (!list.is_array() || list.empty()) wrong(list.is_array() ? "an empty array" : io::json_kind(list));
  std::vector<std::int32_t> ids;
  for (const auto& id : list) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max())
      wrong(id.dump());
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

std::int32_t adapter_of(const Generating& g, const std::string& name, const std::string& where) {
  const auto& all = g.model.adapters();
  const auto found = std::ranges::find(all, name);
  require(found != all.end(), "generate", "{}: adapter: there is none called {}{}", where, io::shown(name),
          all.empty() ? ": give --adapter NAME=DIR" : fmt::format("; there are {}", fmt::join(all, ", ")));
  return static_cast<std::int32_t>(found - all.begin());
}

Text text_of(const Generating& g, const io::Json& line, const std::string& where) {
  const io::JsonObject object(line, where);
  for (const auto& [key, value] : line.items())
    require(key == "prompt" || key == "prompt_ids" || key == "tokens" || key == "adapter", "generate",
            "{}: expected the keys prompt, prompt_ids, tokens and adapter, found {}", where, io::shown(key));
  require(object.has("prompt") != object.has("prompt_ids"), "generate",
          "{}: expected either {{\"prompt\": TEXT}} or {{\"prompt_ids\": [1, 2, 3]}}", where);
  Text t;
  if (const auto prompt = object.get<std::string>("prompt")) {
    require(g.tokenizer != nullptr, "generate", "{}: the model has no tokenizer: give \"prompt_ids\"", where);
    t.prompt = g.encode(*prompt);
  } else {
    t.prompt = ids_of(line.at("prompt_ids"), where);
  }
  if (const auto name = object.get<std::string>("adapter")) t.adapter = adapter_of(g, *name, where);
  const auto asked = object.get<std::int64_t>("tokens");
  const auto context = g.model.config().context, length = static_cast<std::int64_t>(t.prompt.size());
  const bool endless = g.options.kv_window.any();
  require(!asked || (*asked >= 1 && (endless || *asked <= context)), "generate",
          "{}: tokens = {}: expected 1 to {}, the context", where, asked.value_or(0), context);
  t.tokens = new_tokens(asked ? static_cast<int>(*asked) : g.options.tokens, g.options.unsaid_tokens, length, context);
  require(endless || length + t.tokens <= context, "generate",
          "{}: {} prompt tokens and {} new ones do not fit into the model's context of {}", where, length, t.tokens,
          context);
  return t;
}

std::vector<Text> read_prompts(const Generating& g) {
  const bool piped = g.options.prompts == "-";
  const std::string file = piped ? read_stdin() : io::read_file(g.options.prompts),
                    name = piped ? "standard input" : g.options.prompts;
  std::vector<Text> texts;
  int number = 0;
  for (std::size_t at = 0; at < file.size(); ++number) {
    const auto end = std::min(file.find('\n', at), file.size());
    const auto line = std::string_view(file).substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto where = fmt::format("{}, line {}", name, number + 1);
    texts.push_back(text_of(g, io::parse_json(line, where), where));
  }
  require(!texts.empty(), "generate", "{} holds no prompt: expected lines such as {{\"prompt\": \"Once\"}}", name);
  const auto& adapters = g.model.adapters();
  for (std::int32_t i = 0; i < std::ssize(adapters); ++i)
    require(std::ranges::find(texts, i, &Text::adapter) != texts.end(), "generate",
            "{}: no line asks for the adapter {}: add \"adapter\": \"{}\" to lines, or give --adapter DIR without a "
            "name, for all of them",
            name, adapters[static_cast<std::size_t>(i)], adapters[static_cast<std::size_t>(i)]);
  return texts;
}

std::string line_of(const Generating& g, const Text& t, std::size_t index) {
  using Reason = infer::End::Reason;
  const auto reason = t.end->reason;
  Json line{{"index", index}};
  if (g.tokenizer) line["text"] = t.text;
  line["token_ids"] = t.ids, line["prompt_tokens"] = t.prompt.size();
  line["end"] = reason == Reason::eos ? "eos" : reason == Reason::stop ? "stop" : "length";
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int generate_many(const Generating& g) {
  const auto& o = g.options;
  check_writable(o.out);
  auto texts = read_prompts(g);

  const auto batch = std::min<std::int64_t>(o.batch > 0 ? o.batch : kAtATime, std::ssize(texts));
  std::vector<std::int64_t> sizes;
  for (const auto& t : texts) sizes.push_back(std::ssize(t.prompt) + t.tokens);
  std::sort(sizes.begin(), sizes.end(), std::greater());
  const auto pages_of = [&](std::int64_t n) {
    return o.kv_window.any() ? std::min(pages_for(n), o.kv_window.pages()) : pages_for(n);
  };
  const std::int64_t pages =
      std::transform_reduce(sizes.begin(), sizes.begin() + batch, std::int64_t{0}, std::plus(), pages_of);
  infer::Engine engine(g.model, g.pool,
                       {.context = o.kv_window.any() ? 0 : sizes.front(),
                        .sequences = batch,
                        .pages = pages,
                        .vocab = g.vocab(),
                        .kv = o.kv.type(),
                        .kv_window = o.kv_window,
                        .speculation = g.speculation,
                        .numerics = {.row_invariant = o.invariant},
                        .ranks = g.ranks});
  g.choose_ways(engine, std::ssize(texts.front().prompt));

  std::string lines;
  std::size_t written = 0, done = 0, tokens = 0;
  Work work(console());
  const auto begin = Clock::now();
  const auto write = [&] {
    for (; written < texts.size() && texts[written].end; ++written) {
      const auto line = line_of(g, texts[written], written);
      if (o.out.empty()) print_text(line);
      else lines += line;
    }
  };
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (g.tokenizer) texts[i].decoder.emplace(*g.tokenizer);
    texts[i].stop.emplace(o.sampling.stop);
    auto sampling = o.sampling.options;
    sampling.seed += i;  // equal prompts get different texts
    engine.submit({.prompt = texts[i].prompt,
                   .tokens = texts[i].tokens,
                   .sampling = sampling,
                   .adapter = texts[i].adapter,
                   .constraint = g.constraint(),
                   .on_token = [&, i](const infer::Token& t) { return ++tokens, texts[i].add(t.id); },
                   .on_end =
                       [&, i](const infer::End& end) {
                         if (end.reason == infer::End::Reason::failed) throw Error(end.message);
                         texts[i].finish(end), ++done;
                         write();
                       }});
  }
  while (engine.step())
    work.show("generating", static_cast<double>(done) / static_cast<double>(texts.size()),
              {{fmt::format("{} of {} texts", done, texts.size())}, {fmt::format("{} tokens", tokens)}});
  work.end();
  if (!o.out.empty()) io::write_file_atomic(o.out, lines);
  const double seconds = seconds_since(begin), rate = static_cast<double>(tokens) / seconds;
  if (o.json)
    print_json({{"texts", texts.size()},
                {"tokens", tokens},
                {"seconds", seconds},
                {"tokens_per_second", rate},
                {"batch", batch},
                {"proposed_tokens", engine.state().proposed_tokens},
                {"accepted_tokens", engine.state().accepted_tokens},
                {"out", o.out}});
  else say("{}", dim(fmt::format("{} texts, {} tokens, {:.1f} per second", texts.size(), tokens, rate)));
  return exit_code::kDone;
}

}  // namespace hpcdl::cli
