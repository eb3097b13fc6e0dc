// hpcdl generate --prompts: many texts, several at a time.

#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/generated_text.h"
#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"

namespace hpcdl::cli {

namespace {

constexpr int kAtATime = 16;

struct Prompt {
  std::vector<std::int32_t> ids;
  int tokens = 0;             // new ones, at most
  std::int32_t adapter = -1;  // of the model; -1: none
  int priority = 0;
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

Prompt prompt_of(const Generating& g, const io::Json& line, const std::string& where) {
  const io::JsonObject object(line, where);
  for (const auto& [key, value] : line.items())
    require(key == "prompt" || key == "prompt_ids" || key == "tokens" || key == "adapter" || key == "priority",
            "generate", "{}: expected the keys prompt, prompt_ids, tokens, adapter and priority, found {}", where,
            io::shown(key));
  require(object.has("prompt") != object.has("prompt_ids"), "generate",
          "{}: expected either {{\"prompt\": TEXT}} or {{\"prompt_ids\": [1, 2, 3]}}", where);
  Prompt t;
  if (const auto prompt = object.get<std::string>("prompt")) {
    require(g.tokenizer != nullptr, "generate", "{}: the model has no tokenizer: give \"prompt_ids\"", where);
    t.ids = g.encode(*prompt);
  } else {
    t.ids = ids_of(line.at("prompt_ids"), where);
  }
  if (const auto name = object.get<std::string>("adapter")) t.adapter = adapter_of(g, *name, where);
  const auto priority = object.get<std::int64_t>("priority").value_or(0);
  constexpr std::int64_t kMost = std::numeric_limits<int>::max();
  require(priority >= -kMost && priority <= kMost, "generate", "{}: priority = {}: expected {} to {}", where, priority,
          -kMost, kMost);
  t.priority = static_cast<int>(priority);
  const auto asked = object.get<std::int64_t>("tokens");
  const auto context = g.model.config().context, length = static_cast<std::int64_t>(t.ids.size());
  const bool endless = g.options.kv_window.any();
  require(!asked || (*asked >= 1 && (endless || *asked <= context)), "generate",
          "{}: tokens = {}: expected 1 to {}, the context", where, asked.value_or(0), context);
  t.tokens = new_tokens(asked ? static_cast<int>(*asked) : g.options.tokens, g.options.unsaid_tokens, length, context);
  require(endless || length + t.tokens <= context, "generate",
          "{}: {} prompt tokens and {} new ones do not fit into the model's context of {}", where, length, t.tokens,
          context);
  return t;
}

std::vector<Prompt> read_prompts(const Generating& g) {
  const bool piped = g.options.prompts == "-";
  const std::string file = piped ? read_stdin() : io::read_file(g.options.prompts),
                    name = piped ? "standard input" : g.options.prompts;
  std::vector<Prompt> prompts;
  int number = 0;
  for (std::size_t at = 0; at < file.size(); ++number) {
    const auto end = std::min(file.find('\n', at), file.size());
    const auto line = std::string_view(file).substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const auto where = fmt::format("{}, line {}", name, number + 1);
    prompts.push_back(prompt_of(g, io::parse_json(line, where), where));
  }
  require(!prompts.empty(), "generate", "{} holds no prompt: expected lines such as {{\"prompt\": \"Once\"}}", name);
  const auto& adapters = g.model.adapters();
  for (std::int32_t i = 0; i < std::ssize(adapters); ++i)
    require(std::ranges::find(prompts, i, &Prompt::adapter) != prompts.end(), "generate",
            "{}: no line asks for the adapter {}: add \"adapter\": \"{}\" to lines, or give --adapter DIR without a "
            "name, for all of them",
            name, adapters[static_cast<std::size_t>(i)], adapters[static_cast<std::size_t>(i)]);
  return prompts;
}

std::string line_of(const Generating& g, const Prompt& p, const GeneratedText& t, std::size_t place) {
  const auto n = static_cast<std::size_t>(g.options.n);
  Json line{{"index", place / n}};
  if (n > 1) line["choice"] = place % n;
  if (g.tokenizer) line["text"] = t.text();
  line["token_ids"] = t.ids(), line["prompt_tokens"] = p.ids.size(), line["end"] = t.reason();
  t.add_logprobs(g.options, line);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

int generate_many(const Generating& g) {
  const auto& o = g.options;
  check_writable(o.out);
  const auto prompts = read_prompts(g);
  const auto n = static_cast<std::size_t>(o.n), count = prompts.size() * n;
  const auto prompt = [&](std::size_t i) -> const Prompt& { return prompts[i / n]; };

  const auto batch =
      std::min<std::int64_t>(o.batch > 0 ? o.batch : std::max(kAtATime, o.n), static_cast<std::int64_t>(count));
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < count; ++i) sizes.push_back(std::ssize(prompt(i).ids) + prompt(i).tokens);
  std::sort(sizes.begin(), sizes.end(), std::greater());
  const auto pages_of = [&](std::int64_t size) {
    return o.kv_window.any() ? std::min(pages_for(size), o.kv_window.pages()) : pages_for(size);
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
  g.choose_ways(engine, std::ssize(prompts.front().ids));

  std::string lines;
  std::size_t written = 0, done = 0, tokens = 0;
  Work work(console());
  const auto begin = Clock::now();
  std::deque<GeneratedText> texts;
  for (std::size_t i = 0; i < count; ++i) texts.emplace_back(g.tokenizer, o.sampling.stop);
  const auto write = [&] {
    for (; written < count && texts[written].end(); ++written) {
      const auto line = line_of(g, prompt(written), texts[written], written);
      if (o.out.empty()) print_text(line);
      else lines += line;
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    auto request = request_of(g, prompt(i).ids, prompt(i).tokens, i);
    request.priority = prompt(i).priority, request.adapter = prompt(i).adapter;
    request.on_token = [&, i](const infer::Token& t) { return ++tokens, texts[i].add(t), !texts[i].stopped(); };
    request.on_end = [&, i](const infer::End& end) { texts[i].finish(end), ++done, write(); };
    engine.submit(std::move(request));
  }
  while (engine.step())
    work.show("generating", static_cast<double>(done) / static_cast<double>(count),
              {{fmt::format("{} of {} texts", done, count)}, {fmt::format("{} tokens", tokens)}});
  work.end();
  if (!o.out.empty()) io::write_file_atomic(o.out, lines);
  const double seconds = seconds_since(begin), rate = static_cast<double>(tokens) / seconds;
  if (o.json)
    print_json({{"texts", count},
                {"tokens", tokens},
                {"seconds", seconds},
                {"tokens_per_second", rate},
                {"batch", batch},
                {"proposed_tokens", engine.state().proposed_tokens},
                {"accepted_tokens", engine.state().accepted_tokens},
                {"out", o.out}});
  else say("{}", dim(fmt::format("{} texts, {} tokens, {:.1f} per second", count, tokens, rate)));
  return exit_code::kDone;
}

}  // namespace hpcdl::cli
