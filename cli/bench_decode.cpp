// hpcdl bench decode: how fast texts are continued, by how many there are at a time and how long they are, with random
// weights of a given geometry.

#include "cli/bench_decode.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "cli/kv_option.h"
#include "cli/model_ranks.h"
#include "cli/self.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/verb.h"
#include "hpcdl/core/units.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/quant/codecs.h"
#include "hpcdl/rng.h"
#include "tools/disturbance.h"
#include "tools/measure_roofs.h"
#include "tools/probe/sweeps.h"
#include "tools/profile/pass.h"
#include "tools/roofline/report.h"
#include "tools/words.h"

namespace hpcdl::cli {

namespace {

struct BenchDecodeOptions {
  std::string config, dtype, device = "cpu", text = "free";
  std::vector<std::string> spec{"none"};
  std::vector<std::int64_t> batch{1}, depth{0};
  std::int64_t tokens = 64, group = 64, shared = 0;
  int rounds = 3;
  std::uint64_t seed = 0;
  float penalty = 1;
  KvOption kv;
  ThreadsOption threads;
  TuneOption tune;
  bool records = false, invariant = false;
  std::vector<std::string> json;
};

io::ModelConfig config_of(const BenchDecodeOptions& o) {
  auto config = models::parse_hf_config(io::read_json(o.config), o.config);
  if (const auto* codec = quant::find_codec(o.dtype)) {
    config.quant = io::QuantConfig{codec, {.group = o.group, .search = false}};
  } else if (!o.dtype.empty()) {
    config.dtype = o.dtype == "f32" ? DType::f32 : o.dtype == "f16" ? DType::f16 : DType::bf16;
  }
  return config;
}

/// Lets a text be nothing but given tokens, so that it is known whether it repeats itself.
class Dictated final : public infer::TokenConstraint {
 public:
  /// Random ids; `copies`: a block of them, again and again.
  Dictated(std::int64_t vocab, bool copies, std::uint64_t seed) : vocab_(vocab), copies_(copies), seed_(seed) {}
  void mask(std::span<std::uint32_t> allowed) override {
    constexpr std::uint64_t kBlock = 32;
    const Rng rng{seed_, 0};
    const auto id = rng.below(copies_ ? at_ % kBlock : at_, static_cast<std::uint64_t>(vocab_));
    std::ranges::fill(allowed, 0u);
    allowed[id / 32] = 1u << id % 32;
  }
  void accept(std::int32_t) override { ++at_; }

 private:
  std::int64_t vocab_;
  bool copies_;
  std::uint64_t seed_, at_ = 0;
};

/// One round of a row: seconds.
struct Round {
  double prompts = 0;  // until every sequence has its first token
  double decode = 0;
  std::int64_t decoded = 0;  // tokens in that time
  double read = 0;           // bytes per second that can be read from memory, measured in turn

  double rate() const { return static_cast<double>(decoded) / decode; }
};

/// Seconds to the first token of a text, and of one after it that begins alike.
struct FirstTokens {
  double cold = 0, shared = 0;
};

struct Row {
  std::int64_t batch, depth;
  std::string spec;
  bool invariant = false;
  std::vector<Round> rounds = {};
  double bytes = 0;  // of weights and keys and values that one step reads
  lab::Disturbance disturbance = {};
  std::optional<lab::Report> records = {};  // of the last pass
  std::vector<FirstTokens> firsts = {};     // of each round, with --shared

  /// The median over the rounds.
  template <class F> double median(F of) const { return median_of(rounds, of); }
  template <class R, class F> static double median_of(const std::vector<R>& all, F of) {
    std::vector<double> v;
    for (const auto& r : all) v.push_back(std::invoke(of, r));
    std::ranges::sort(v);
    return v[v.size() / 2];
  }
  double rate() const { return median(&Round::rate); }
  double cold() const { return median_of(firsts, &FirstTokens::cold); }
  double shared() const { return median_of(firsts, &FirstTokens::shared); }
  double prompt_rate() const {
    return static_cast<double>(batch * depth) / median([](const Round& r) { return r.prompts; });
  }
  double first_token() const {
    return median([](const Round& r) { return r.prompts; });
  }
  /// Bytes that a step reads per second, of those that could be read.
  double share_of_read_rate() const {
    return median([this](const Round& r) { return bytes * r.rate() / static_cast<double>(batch) / r.read; });
  }
};

class BenchDecode {
 public:
  BenchDecode(const BenchDecodeOptions& o, const comm::Joined& joined)
      : o_(o),
        ranks_(joined, "bench decode", {{"the command", own_command()}}),
        pool_(ranks_.threads(o.threads.checked("bench"))),
        device_(device_from_name(device_of_rank(o.device, joined.place()))),
        roofs_(ranks_.leads() ? lab::roofs(device_, pool_, lab::Remember::best) : lab::Roofs()),
        model_(make()) {}

  int run() {
    return ranks_.lead(model_, pool_, o_.tune, [this] { return measure(); });
  }

 private:
  int measure() {
    std::vector<Row> rows;
    Work progress(console());
    const auto all = static_cast<double>(o_.batch.size() * o_.depth.size() * o_.spec.size());
    for (const auto depth : o_.depth)
      for (const auto batch : o_.batch) {
        progress.show("bench decode", static_cast<double>(rows.size()) / all,
                      {{fmt::format("{} texts, depth {}", batch, depth)}});
        std::ranges::move(measured(batch, depth), std::back_inserter(rows));
      }
    progress.end();
    const bool to_stdout = !o_.json.empty() && o_.json[0].empty();
    const Json json = report(rows);
    if (to_stdout) print_json(json);
    else print_text(table(rows));
    if (!o_.json.empty() && !to_stdout) io::write_file_atomic(o_.json[0], json.dump(1) + "\n");
    return exit_code::kDone;
  }

  models::LanguageModel make() {
    const auto config = config_of(o_);
    const auto longest = std::ranges::max(o_.depth) + 2 * o_.tokens;
    if (longest > config.context)
      fail_usage("bench", "a depth of {} and {} tokens need a context of {}, but {} has {}", std::ranges::max(o_.depth),
                 o_.tokens, longest, o_.config, config.context);
    if (ranks_.size() > 1 && o_.spec.size() > 1)
      fail_usage("bench", "--spec: ranks that share a model have one engine at a time: give none or ngram");
    const Waiting waiting(ranks_.leads() ? console() : Console(), "drawing the weights");
    auto model = models::LanguageModel::random(pool_, config, o_.seed, ranks_.sharing());
    model.to_device(Stream(device_, pool_));
    return model;
  }

  /// What a step of this rank reads: all weights but the rows of embeddings that it skips, and the keys and values.
  double bytes_of(std::int64_t batch, std::int64_t depth) const {
    const auto& c = model_.config();
    double bytes = static_cast<double>(model_.bytes());
    model_.state().for_each([&](const StateEntry& e) {
      if (!e.param->multiplied && e.param->spec.shape.rank() == 2) bytes -= static_cast<double>(e.memory.bytes());
    });
    const auto page = 2 * c.layers * infer::pool_spec(model_, 1, o_.kv.type()).bytes();
    return bytes + static_cast<double>(batch * (depth + o_.tokens / 2) * page) / static_cast<double>(kPageTokens);
  }

  /// A row of each kind of speculation and of numerics, which take turns.
  std::vector<Row> measured(std::int64_t batch, std::int64_t depth) {
    const std::int64_t prompt = std::max<std::int64_t>(depth, 1);
    const std::int64_t budget = infer::usual_budget(device_, batch);
    // The first texts go on while the prompts of the last ones are processed.
    limit_ = o_.tokens + 2 + batch * prompt / (budget - batch);
    const std::int64_t context = std::min(model_.config().context, prompt + limit_);
    auto tuning = start_tuning(o_.tune, device_, pool_);
    const bool measures = tuning && o_.tune.mode == "full";
    std::deque<infer::Engine> engines;
    std::vector<Row> rows;
    const auto add = [&](const std::string& spec, bool invariant) {
      rows.push_back(
          {.batch = batch, .depth = depth, .spec = spec, .invariant = invariant, .bytes = bytes_of(batch, depth)});
      auto& engine = engines.emplace_back(model_, pool_,
                                          infer::EngineOptions{.context = context,
                                                               .sequences = batch,
                                                               .budget = budget,
                                                               .reuse_prefixes = false,
                                                               .kv = o_.kv.type(),
                                                               .speculation = {.ngrams = spec == "ngram"},
                                                               .numerics = {.row_invariant = invariant},
                                                               .ranks = ranks_.link()});
      engine.set_ways(tuned_ways(tuning, o_.tune, measures ? engine.programs(prompt) : std::vector<const Instance*>()));
      once(engine, batch, prompt);  // records, plans and captures the programs
    };
    for (const auto& spec : o_.spec) {
      add(spec, false);
      if (o_.invariant) add(spec, true);
    }
    const lab::DisturbanceWatch watch;
    for (int i = 0; i < o_.rounds; ++i)
      for (std::size_t e = 0; e < rows.size(); ++e) {
        rows[e].rounds.push_back(once(engines[e], batch, prompt));
        rows[e].rounds.back().read = read_rate();
      }
    for (std::size_t e = 0; e < rows.size(); ++e) {
      if (!device_.is_cuda()) rows[e].disturbance = watch.so_far();
      if (o_.records) rows[e].records = lab::profile_pass(*engines[e].last_program(), engines[e].stream(), roofs_);
    }
    engines.clear();
    if (o_.shared > 0) rows[0].firsts = first_tokens(prompt);
    return rows;
  }

  /// How soon a text has its first token if the keys of the beginning of its prompt are there.
  std::vector<FirstTokens> first_tokens(std::int64_t prompt) {
    infer::Engine engine(model_, pool_, {.context = prompt + 1, .kv = o_.kv.type(), .ranks = ranks_.link()});
    std::mt19937_64 random(o_.seed);
    const auto draw = [&](std::int32_t& id) {
      id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model_.config().vocab));
    };
    std::vector<std::int32_t> ids(static_cast<std::size_t>(prompt));
    const auto timed = [&] {
      const auto begin = Clock::now();
      engine.submit({.prompt = ids, .tokens = 1, .sampling = {.ignore_eos = true}});
      engine.run();
      return seconds_since(begin);
    };
    std::vector<FirstTokens> rounds;
    for (int i = 0; i <= o_.rounds; ++i) {  // the first one records the programs
      std::ranges::for_each(ids, draw);
      const double cold = timed();
      std::ranges::for_each(std::span(ids).subspan(static_cast<std::size_t>(o_.shared)), draw);
      rounds.push_back({cold, timed()});
    }
    rounds.erase(rounds.begin());
    return rounds;
  }

  /// On a CPU measured anew, because other programs and guests of the host change it within seconds.
  double read_rate() {
    if (device_.is_cuda()) return roofs_.memory_read;
    constexpr std::int64_t kWindows = 48;
    const auto each = lab::bytes_beyond(lab::this_machine(), pool_.threads());
    if (!sweeps_) sweeps_.emplace(pool_, each * pool_.threads());
    double best = 0;
    for (const auto way : {cpu::Sweep::read, cpu::Sweep::read_streams}) {
      const auto begin = Clock::now();
      const double bytes = sweeps_->walk(pool_, way, each, kWindows);
      best = std::max(best, bytes / seconds_since(begin));
    }
    return best;
  }

  Round once(infer::Engine& engine, std::int64_t batch, std::int64_t prompt) {
    Round r;
    std::int64_t started = 0;
    const auto begin = Clock::now();
    auto all_started = begin;
    std::mt19937_64 random(o_.seed);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(prompt));
    for (std::int64_t i = 0; i < batch; ++i) {
      for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(model_.config().vocab));
      const auto count = [&, mine = std::int64_t{0}, first = true](const infer::Token&) mutable {
        if (first && ++started == batch) all_started = Clock::now();
        else if (started == batch) ++mine, ++r.decoded;
        first = false;
        return mine < o_.tokens;
      };
      infer::Request request{.prompt = ids,
                             .tokens = static_cast<int>(limit_),
                             .sampling = {.repetition_penalty = o_.penalty, .ignore_eos = true},
                             .on_token = count};
      if (o_.text != "free")
        request.constraint = std::make_shared<Dictated>(model_.config().vocab, o_.text == "copy",
                                                        o_.seed + static_cast<std::uint64_t>(i));
      engine.submit(std::move(request));
    }
    engine.run();
    r.prompts = std::chrono::duration<double>(all_started - begin).count();
    r.decode = seconds_since(all_started);
    return r;
  }

  std::string where() const {
    return ranks_.size() > 1 ? fmt::format("each of {} ranks, {}", ranks_.size(), o_.device) : o_.device;
  }

  std::string table(const std::vector<Row>& rows) const {
    auto text = fmt::format(
        "{:.2f} B parameters, {} on {}; medians of {} rounds of {} tokens\n{:>6}{:>8}{:>14}{:>16}{:>18}{:>22}\n",
        static_cast<double>(model_.state().parameter_count()) / 1e9, format_bytes(model_.bytes()), where(), o_.rounds,
        o_.tokens, "texts", "depth", "tokens/s", "prompts, tok/s", "first token, ms", "of the read rate");
    for (const auto& r : rows) {
      text += fmt::format("{:>6}{:>8}{:>14.1f}{:>16}{:>18.1f}{:>20.0f} %", r.batch, r.depth, r.rate(),
                          r.depth > 0 ? fmt::format("{:.0f}", r.prompt_rate()) : "-", 1e3 * r.first_token(),
                          100 * r.share_of_read_rate());
      if (o_.spec.size() > 1) text += fmt::format("  spec {}", r.spec);
      if (r.invariant) text += "  invariant";
      if (!r.firsts.empty())
        text += fmt::format("  first token {:.1f} ms, {:.1f} ms where {} tokens are shared", 1e3 * r.cold(),
                            1e3 * r.shared(), o_.shared);
      if (r.disturbance.heavy()) text += "  " + r.disturbance.text();
      text += "\n";
    }
    for (const auto& r : rows)
      if (r.records)
        text += fmt::format("\nthe records of the last pass of {} at a depth of {}: {:.3f} ms\n",
                            lab::plural(r.batch, "text"), r.depth, 1e3 * r.records->step_seconds) +
                lab::ranked_text(*r.records, 12);
    return text;
  }

  Json report(const std::vector<Row>& rows) const {
    const auto m = lab::this_machine();
    Json json{
        {"machine", {{"cpu", m.cpu}, {"isa", m.isa}, {"threads", pool_.threads()}, {"date", lab::roofline::today()}}},
        {"device", o_.device},
        {"ranks", ranks_.size()},
        {"kv", o_.kv.word},
        {"model",
         {{"config", o_.config},
          {"parameters", model_.state().parameter_count()},
          {"dtype", model_.config().quant ? std::string(model_.config().quant->codec->name)
                                          : std::string(dtype_name(model_.config().dtype))},
          {"bytes", model_.bytes()}}},
        {"text", o_.text},
        {"repetition_penalty", o_.penalty},
        {"read_bytes_per_second", roofs_.memory_read},
        {"rows", Json::array()}};
    for (const auto& r : rows) {
      Json row{{"texts", r.batch},
               {"depth", r.depth},
               {"spec", r.spec},
               {"invariant", r.invariant},
               {"tokens_per_second", r.rate()},
               {"first_token_ms", 1e3 * r.first_token()},
               {"bytes_per_step", r.bytes},
               {"share_of_read_rate", r.share_of_read_rate()},
               {"read_bytes_per_second", r.median(&Round::read)},
               {"rounds", Json::array()}};
      if (r.depth > 0) row["prompt_tokens_per_second"] = r.prompt_rate();
      for (const auto& round : r.rounds) row["rounds"].push_back(round.rate());
      if (!device_.is_cuda()) row["disturbance"] = lab::to_json(r.disturbance);
      for (const auto& first : r.firsts)
        row["shared_prefix"].push_back(
            {{"tokens", o_.shared}, {"cold_ms", 1e3 * first.cold}, {"shared_ms", 1e3 * first.shared}});
      if (r.records) row["records"] = lab::report_json(*r.records);
      json["rows"].push_back(row);
    }
    return json;
  }

  const BenchDecodeOptions& o_;
  ModelRanks ranks_;
  Pool pool_;
  Device device_;
  lab::Roofs roofs_;
  models::LanguageModel model_;
  std::optional<lab::SweepMemory> sweeps_;  // of read_rate()
  std::int64_t limit_ = 0;                  // of new tokens of a text
};

int bench_decode(const BenchDecodeOptions& o) {
  require(!o.spec.empty(), "bench", "--spec: expected none, ngram or both");
  for (const auto n : o.batch)
    if (n < 1 || n > 1024) fail_usage("bench", "--batch {}: expected 1 to 1024 texts at a time", n);
  for (const auto n : o.depth)
    if (n < 0) fail_usage("bench", "--depth {}: expected the number of tokens before the measured ones, 0 or more", n);
  if (o.shared < 0 || (o.shared > 0 && o.shared >= std::ranges::min(o.depth)))
    fail_usage("bench", "--shared {}: expected fewer tokens than the prompts of --depth have", o.shared);
  if (!o.json.empty() && !o.json[0].empty()) check_writable(o.json[0]);
  auto joined = join_ranks({});
  if (o.records && joined.place().world > 1)
    fail_usage("bench", "--records runs a pass on one rank alone: leave it out where ranks share the model");
  return on_ranks(joined, [&] { return BenchDecode(o, joined).run(); });
}

}  // namespace

std::function<int()> add_bench_decode(const Command& bench) {
  auto o = std::make_shared<BenchDecodeOptions>();
  const Command sub = bench.subcommand("decode",
                                       "Times the continuation of texts with random weights of a given geometry: by "
                                       "the number of texts at a time and their length; ranks that a launcher has "
                                       "started share the model");
  sub.option("--config", o->config, "config.json of a model; no weights are needed").required();
  sub.option("--batch", o->batch, "Texts at a time").separated_by(',').kind("N,N").shows_default();
  sub.option("--depth", o->depth, "Tokens of each text before the measured ones")
      .separated_by(',')
      .kind("N,N")
      .shows_default();
  sub.option("--tokens", o->tokens, "Measured tokens of each text").range(1, 1 << 20).shows_default();
  sub.option("--rounds", o->rounds, "Measured rounds of each row").range(1, 10000).shows_default();
  sub.option("--dtype", o->dtype, "Type of the weights; default: that of the config")
      .one_of({"f32", "bf16", "f16", "int4"});
  sub.option("--group", o->group, "With int4: weights that share a scale")
      .one_of(std::vector<int>{32, 64, 128})
      .shows_default();
  add_kv_option(sub, o->kv);
  sub.option("--seed", o->seed, "Seed of the weights and of the texts").shows_default();
  sub.option("--spec", o->spec,
             "ngram: tokens are proposed from earlier parts of a text and checked together; none,ngram: both, in turns")
      .one_of({"none", "ngram"})
      .separated_by(',')
      .shows_default();
  sub.option(
         "--text", o->text,
         "The new tokens: free: those of the model; random: dictated ones; copy: dictated ones that repeat themselves")
      .one_of({"free", "random", "copy"})
      .shows_default();
  sub.option("--repetition-penalty", o->penalty, "Of tokens that stand in the text; 1: none")
      .range(0.01, 100.0)
      .shows_default();
  sub.option("--device", o->device, "cpu, cuda or cuda:N").shows_default();
  add_threads_option(sub, o->threads);
  add_tune_option(sub, o->tune);
  add_ways_option(sub, o->tune);
  sub.flag("--invariant", o->invariant, "Also measure, in turns, programs that are invariant, as those of generate");
  sub.option("--shared", o->shared,
             "Also time the first token of a prompt of the depth whose first N tokens an earlier one had")
      .kind("N");
  sub.flag("--records", o->records, "Also time the records of the last pass of each row");
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] { return bench_decode(*o); };
}

}  // namespace hpcdl::cli
