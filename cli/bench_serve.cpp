// hpcdl bench serve: how long the clients of a server wait, when they arrive at random.

#include "cli/bench_serve.h"

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "cli/model_ranks.h"
#include "cli/threads_option.h"
#include "cli/verb.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/serve/load.h"
#include "hpcdl/serve/server.h"

namespace hpcdl::cli {
namespace {

struct BenchServeOptions {
  std::string url, key_file;
  serve::ServerConfig server;
  serve::LoadOptions load;
  double slo_first = 0, slo_gap = 0;  // ms; 0: not given
  bool deadlines = false;             // the server heeds these
  ThreadsOption threads;
  std::vector<std::string> json;
};

double mean(const std::vector<double>& list) {
  return list.empty() ? 0 : std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

/// In milliseconds.
Json percentiles(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    if (seconds.empty()) return Json();
    return Json(1e3 * seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1) + 0.5)]);
  };
  return {{"mean", seconds.empty() ? Json() : Json(1e3 * mean(seconds))},
          {"p50", at(0.5)},
          {"p90", at(0.9)},
          {"p99", at(0.99)},
          {"most", at(1)}};
}

Json report(const BenchServeOptions& o, const std::vector<serve::Seen>& seen, double seconds) {
  std::vector<double> first, gaps, whole;
  std::int64_t tokens = 0, failed = 0, good = 0;
  std::string error;
  for (const auto& s : seen) {
    if (!s.error.empty()) {
      ++failed;
      error = s.error;
      continue;
    }
    first.push_back(s.first), whole.push_back(s.whole);
    gaps.insert(gaps.end(), s.gaps.begin(), s.gaps.end());
    tokens += s.tokens;
    good += (o.slo_first == 0 || 1e3 * s.first <= o.slo_first) && (o.slo_gap == 0 || 1e3 * mean(s.gaps) <= o.slo_gap);
  }
  Json j{{"requests", seen.size()},
         {"failed", failed},
         {"rate", o.load.rate},
         {"input", o.load.input},
         {"output", o.load.output},
         {"seconds", seconds},
         {"requests_per_second", static_cast<double>(first.size()) / seconds},
         {"tokens_per_second", static_cast<double>(tokens) / seconds},
         {"first_token_ms", percentiles(std::move(first))},
         {"between_tokens_ms", percentiles(std::move(gaps))},
         {"request_ms", percentiles(std::move(whole))}};
  if (!error.empty()) j["error"] = error;
  if (o.slo_first > 0 || o.slo_gap > 0)
    j["goodput"] = {{"slo_ttft_ms", o.slo_first > 0 ? Json(o.slo_first) : Json()},
                    {"slo_itl_ms", o.slo_gap > 0 ? Json(o.slo_gap) : Json()},
                    {"requests", good},
                    {"share", static_cast<double>(good) / static_cast<double>(seen.size())},
                    {"requests_per_second", static_cast<double>(good) / seconds}};
  return j;
}

void print_report(const Json& j) {
  say("{} requests, {} failed, in {:.1f} s: {:.2f} requests and {:.1f} new tokens per second", j["requests"].get<int>(),
      j["failed"].get<int>(), j["seconds"].get<double>(), j["requests_per_second"].get<double>(),
      j["tokens_per_second"].get<double>());
  for (const auto& [key, name] :
       {std::pair("first_token_ms", "first token"), std::pair("between_tokens_ms", "between tokens"),
        std::pair("request_ms", "whole request")}) {
    const auto& p = j[key];
    if (p["p50"].is_number())
      say("{:<15} ms: median {:9.2f}   90 % {:9.2f}   99 % {:9.2f}   most {:9.2f}", name, p["p50"].get<double>(),
          p["p90"].get<double>(), p["p99"].get<double>(), p["most"].get<double>());
  }
  if (j.contains("goodput"))
    say("within the limits: {} requests, {:.2f} per second", j["goodput"]["requests"].get<int>(),
        j["goodput"]["requests_per_second"].get<double>());
  if (j.contains("error")) say("the last error: {}", j["error"].get<std::string>());
}

int measure(const BenchServeOptions& o) {
  const auto begin = Clock::now();
  const auto seen = serve::run_load(o.load);
  const auto j = report(o, seen, seconds_since(begin));
  const bool to_stdout = !o.json.empty() && o.json[0].empty();
  if (to_stdout) print_json(j);
  else if (!o.json.empty()) io::write_file_atomic(o.json[0], j.dump(1) + "\n");
  if (!to_stdout) print_report(j);
  require(j["failed"] != j["requests"], "bench", "no request had an answer: {}", j.value("error", ""));
  return exit_code::kDone;
}

/// With a server of this process; `ranks`: those that share its model, if there are others.
int measure_here(BenchServeOptions& o, infer::RankLink* ranks) {
  o.server.serve.port = 0, o.server.serve.drain = 0;
  o.server.serve.queue = o.load.requests;
  if (o.deadlines) o.server.engine.slo_ttft = o.slo_first, o.server.engine.slo_itl = o.slo_gap;
  std::promise<void> loaded;
  bool is_loaded = false;
  serve::Server server(o.server,
                       {.ready = [&](const serve::Server&) { is_loaded = true, loaded.set_value(); }, .ranks = ranks});
  std::exception_ptr failure;
  std::thread serving([&] {
    try {
      server.run();
    } catch (...) {
      failure = std::current_exception();
      if (!is_loaded) loaded.set_exception(failure);
    }
  });
  int code = exit_code::kInternal;
  try {
    loaded.get_future().get();
    serve::read_url("http://" + server.address(), o.load);
    o.load.vocab = std::min<std::int64_t>(server.facts().vocab, server.facts().tokenizer.vocab_size());
    code = measure(o);
  } catch (...) {
    failure = std::current_exception();
  }
  server.drain();
  serving.join();
  if (failure) std::rethrow_exception(failure);
  if (ranks) ranks->end();
  return code;
}

int measure_on(BenchServeOptions& o, const comm::Joined& joined) {
  auto& e = o.server.engine;
  ModelRanks ranks(joined, "bench serve", facts_of_model(io::find_model_folder(e.model), e.device, "auto", e.kv, {}));
  e.threads = ranks.threads(e.threads), e.device = device_of_rank(e.device, joined.place());
  return ranks.leads() ? measure_here(o, ranks.link()) : follow(ranks, e, {});
}

int bench_serve(BenchServeOptions& o) {
  if (o.url.empty() == o.server.engine.model.empty())
    fail_usage("bench", "serve: give either --url of a server, or --model for a server of its own");
  if (!o.json.empty()) check_writable(o.json[0]);
  if (o.deadlines && (!o.url.empty() || o.slo_first + o.slo_gap == 0))
    fail_usage("bench", "serve: --deadlines is for --model with --slo-ttft or --slo-itl");
  o.server.engine.threads = o.threads.checked("bench");
  if (o.url.empty()) {
    auto joined = join_ranks({});
    return on_ranks(joined, [&] { return measure_on(o, joined); });
  }
  serve::read_url(o.url, o.load);
  if (!o.key_file.empty()) {
    o.load.key = io::read_file(o.key_file);
    o.load.key.erase(o.load.key.find_last_not_of(" \t\r\n") + 1);
  }
  return measure(o);
}

}  // namespace

std::function<int()> add_bench_serve(const Command& bench) {
  auto o = std::make_shared<BenchServeOptions>();
  o->load.requests = 64;
  const Command sub = bench.subcommand(
      "serve", "Measures a server of texts: waiting times of clients that arrive at random, throughput, goodput");
  sub.option("--url", o->url, "Server to measure: http://HOST:PORT");
  sub.option("--api-key", o->key_file, "File with its key");
  sub.option("--model", o->server.engine.model,
             "Instead of --url: a model for a server in this process; ranks that a launcher has started share it");
  sub.option("--rate", o->load.rate, "Requests a second, on average; 0: all at once").range(0.0, 1e6).shows_default();
  sub.option("--requests", o->load.requests, "Number of requests").range(1, 1 << 20).shows_default();
  sub.option("--input", o->load.input, "Tokens of a prompt, drawn at random").range(1, 1 << 20).shows_default();
  sub.option("--output", o->load.output, "New tokens").range(1, 1 << 20).shows_default();
  sub.option("--vocab", o->load.vocab, "With --url: prompts have ids below this").range(1, 1 << 24).shows_default();
  sub.option("--slo-ttft", o->slo_first, "Goodput: the most time to the first token, ms").positive();
  sub.option("--slo-itl", o->slo_gap, "Goodput: the most time between tokens, on average over a text, ms").positive();
  sub.option("--seed", o->load.seed, "Seed of prompts and arrivals").shows_default();
  sub.option("--timeout", o->load.timeout, "Seconds for a request").positive().shows_default();
  sub.option("--batch", o->server.engine.batch, "With --model: texts that are continued at a time")
      .range(1, 1024)
      .shows_default();
  sub.option("--context", o->server.engine.context, "With --model: most tokens of a text; default: those of the model")
      .positive();
  sub.flag("--deadlines", o->deadlines, "With --model: the server schedules by --slo-ttft and --slo-itl");
  sub.flag("--warm", o->server.engine.warm, "With --model: the server records its programs before the first request");
  sub.option("--spec", o->server.engine.spec, "With --model: what proposes tokens").kind("WORD|DIR").shows_default();
  sub.option("--device", o->server.engine.device, "With --model: cpu, cuda or cuda:N").shows_default();
  add_threads_option(sub, o->threads);
  sub.option("--json", o->json, "One JSON object on stdout, or in FILE if a name is given").values(0, 1).kind("[FILE]");
  return [o] { return bench_serve(*o); };
}

}  // namespace hpcdl::cli
