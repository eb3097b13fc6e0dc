#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/core/clock.h"
#include "hpcdl/infer/drafter.h"
#include "hpcdl/infer/kv_window.h"
#include "hpcdl/infer/packed_passes.h"
#include "hpcdl/infer/page_table.h"
#include "hpcdl/infer/request.h"
#include "hpcdl/infer/sampler.h"
#include "hpcdl/infer/scheduler.h"
#include "hpcdl/infer/text_rules.h"
#include "hpcdl/infer/window_pages.h"
#include "hpcdl/models/language_model.h"

namespace hpcdl::infer {

struct EngineOptions {
  std::int64_t context = 0;    // the most tokens of a text, prompt included; 0: the model's context
  std::int64_t sequences = 1;  // texts that are processed at a time
  std::int64_t pages = 0;      // of 64 tokens, for keys and values; 0: enough for `sequences` texts
  std::int64_t budget = 0;     // the most tokens of a pass; at least sequences + kLeastChunk; 0: usual_budget()
  std::int64_t vocab = 0;      // ids from here on are never taken, such as those that a tokenizer lacks; 0: none
  bool reuse_prefixes = true;  // texts that begin alike share keys and values
  DType kv = DType::none;      // of keys and values, as in pool_spec(); none: the type of activations
  KvWindow kv_window = {};     // of each text, which then may be longer than `context`
  /// Several tokens of a text are proposed and checked in one pass. They are chosen as they would be one by one, so that
  /// only the rounding of logits may differ, and not even that where numerics are row-invariant.
  struct Speculation {
    bool ngrams = false;                           // proposals: what followed the last tokens earlier in the text
    const models::LanguageModel* draft = nullptr;  // or those of a smaller model on the same device
  } speculation = {};
  Deadlines deadlines = {};
  /// Where they are row-invariant, the logits after a token have the same bits whatever passes the tokens before it ran
  /// through, and whatever other texts there are; also where their keys are reused or computed again.
  Numerics numerics = {};
  /// Of a model that ranks share: this rank is the first of them, and the others follow() it. One engine at a time.
  RankLink* ranks = nullptr;
};

/// Tokens of prompts for which every pass has room beside one token of each text.
inline constexpr std::int64_t kLeastChunk = 64;
/// Enough tokens of prompts to keep the device busy.
inline std::int64_t usual_budget(Device device, std::int64_t sequences) {
  return std::max<std::int64_t>(device.is_cuda() ? 2048 : 512, sequences + kLeastChunk);
}

/// What an engine holds, and what it has done so far.
struct EngineState {
  std::int64_t waiting = 0, running = 0;                     // texts
  std::int64_t pages = 0, free_pages = 0, cached_pages = 0;  // cached ones can be taken, too
  std::int64_t window_pages = 0, free_window_pages = 0;      // of layers with a window, if they have pages of their own
  std::int64_t left_pages = 0;                               // of these, times that a window left one
  std::int64_t preemptions = 0;
  std::int64_t prompt_tokens = 0, cached_tokens = 0;  // of texts that have begun
  std::int64_t new_tokens = 0;
  std::int64_t proposed_tokens = 0, accepted_tokens = 0;  // of speculation
  std::int64_t programs = 0;                              // that have been recorded
};

/// Generates any number of texts, several at a time, whose keys and values share a pool of pages, which they take as they
/// grow. A step is a pass over a token of each text and the next tokens of prompts together, through a recorded program
/// for the number of tokens, rounded up, and of texts. All programs share one arena. Ranks that share the layers of a
/// model run what the engine of the first one decides; their scheme must be `conjugate`. If one of them is lost, step()
/// throws comm::PeerLost. The type of activations: type_of_inference().
class Engine {
 public:
  /// Throws Error for options that do not fit the model or each other.
  Engine(const models::LanguageModel& model, Pool& pool, const EngineOptions& options = {});

  /// The ways in which its programs compute on a GPU, to be set before the first token.
  void set_ways(std::shared_ptr<const Ways> ways) { passes_.stream().set_ways(std::move(ways)); }
  /// Records the usual programs now, which would otherwise delay the texts that first need them.
  void warm() { passes_.warm(); }

  /// Queues a text. Throws Error if it does not fit `context` or the pool, or if an id is not in the vocabulary.
  RequestId submit(Request request);
  /// Ends a text before its time, between steps or from a callback; false if there is none with this id. Its pages are
  /// free when this returns, or from a callback after the step.
  bool cancel(RequestId id);
  /// One pass; false if there is no text. On a GPU it may be up to kAhead passes, where all texts continue with tokens
  /// that the GPU chooses. A text whose logits are not finite fails alone; after an exception all texts are gone.
  bool step();
  static constexpr std::int64_t kAhead = 16;
  /// Once this says true, no more passes are queued ahead, so that step() returns soon.
  void interrupt_when(std::function<bool()> f) { interrupted_ = std::move(f); }
  /// Until there is no text.
  void run() {
    while (step()) {}
  }
  /// submit() and run() for one text; throws Error if it fails.
  GenerationStats generate(std::span<const std::int32_t> prompt, int tokens, const SamplingOptions& sampling,
                           const std::function<bool(std::int32_t id)>& on_token);

  /// Between two steps: throws if ranks that share the model are no longer in step.
  void check_ranks() { passes_.check_ranks(); }
  /// Whether ranks share the model, so that there are no steps after one that has thrown.
  bool shared() const { return options_.ranks != nullptr; }

  /// The type of activations.
  DType dtype() const { return dtype_; }
  EngineState state() const;
  /// The programs for a prompt of this many tokens and for the new tokens after it.
  std::vector<const Instance*> programs(std::int64_t prompt_tokens) { return passes_.programs(prompt_tokens); }
  /// The program of the last pass, null before the first one, and the stream that it runs on. Between steps it may run
  /// again, to be measured; texts that have not ended must be cancelled after that.
  const Instance* last_program() const { return passes_.last(); }
  Stream& stream() { return passes_.stream(); }

 private:
  struct Sequence {
    RequestId id = 0;
    Request request;  // without its prompt
    End end;
    TokenCounts counts;                // if there are penalties
    std::vector<std::int32_t> tokens;  // prompt and new ones
    std::string salt;                  // what its pages are found by, beside the tokens
    PageHashes hashes;                 // of these
    std::vector<std::int32_t> pages;
    std::vector<std::int32_t> window_pages;  // of layers with a window, one for each of these; -1: left
    std::int64_t left = 0;                   // of these, the first ones that the window has left
    std::int64_t dropped = 0;                // pages after the sinks that it no longer has, with a KvWindow
    std::int64_t done = 0;                   // tokens whose keys are in the pages
    std::int64_t published = 0;              // pages that other texts may find
    PageTable::Entry parent = 0;             // of the last of them
    Clock::time_point submitted, first;
    bool begun = false, ended = false;

    std::int64_t pending() const { return std::ssize(tokens) - done; }
    std::int64_t keys() const { return done - dropped * kPageTokens; }  // in its pages
    /// Page `number` of its tokens, after those that it has dropped.
    std::int32_t page(std::int64_t number) const { return pages[static_cast<std::size_t>(number - dropped)]; }
    /// Its first `count` tokens.
    PagedText until(std::int64_t count) const {
      return {std::span(tokens).first(static_cast<std::size_t>(count)), hashes, salt};
    }
    /// Whether the rules for its next tokens depend on those before them.
    bool rules_move() const {
      const auto& o = request.sampling;
      return o.has_penalties() || request.constraint || end.stats.new_tokens < o.min_tokens;
    }
    bool wants_prompt_logprobs() const {
      return request.prompt_logprobs >= 0 && std::ssize(end.prompt_logprobs) + 1 < end.stats.prompt_tokens;
    }
  };
  using Queue = std::deque<std::unique_ptr<Sequence>>;  // the most important one first
  struct Part {
    Sequence* text;
    std::int64_t tokens;                      // known ones
    std::vector<std::int32_t> proposed = {};  // after them
    /// Rows of logits, the last ones.
    std::int64_t read() const {
      if (text->wants_prompt_logprobs()) return tokens;
      return tokens == text->pending() ? 1 + std::ssize(proposed) : 0;
    }
  };
  /// A waiting text that could begin, and the keys and values of its first tokens that are there.
  struct Candidate {
    Sequence* text;
    PageTable::Found found;
  };

  static void insert(Queue& queue, std::unique_ptr<Sequence> q);
  static std::unique_ptr<Sequence> remove(Queue& queue, const Sequence* q);
  double now() const { return seconds_since(start_); }
  double due(const Sequence& q) const;
  Limits limits() const;
  std::vector<Sequence*> waiting_by_urgency() const;
  std::vector<Candidate> candidates() const;
  Schedule plan(const std::vector<Candidate>& waiting) const;
  PageTable::Found find(const Sequence& q) const;
  PageTable::Found within_windows(PageTable::Found f) const;
  std::int64_t most_pages(const Sequence& q) const;
  std::int64_t room(const Sequence& q) const;
  void restart_full();
  void advance_all();
  void hold(Sequence& q, const PageTable::Found& found);
  void begin(Sequence& q, const PageTable::Found& found);
  void add_page(Sequence& q, std::int32_t page);
  void drop_page(Sequence& q);
  void leave_pages(Sequence& q);
  void grow(Sequence& q, std::int64_t tokens);
  void publish(Sequence& q);
  void give_back(Sequence& q);
  void release(Sequence& q);
  void speculate(std::vector<Part>& parts);
  void start(const std::vector<Part>& parts, bool chosen_on_gpu);
  void set_rules_of(const Part& part, std::vector<RowRules>& all);
  void set_wanted_of(const Part& part, std::vector<std::int32_t>& ids) const;
  void pass(const std::vector<Part>& parts);
  void pass_ahead(const std::vector<Part>& parts, std::int64_t steps);
  void take_row(Sequence& q, std::size_t row, std::span<const std::int32_t> found, std::span<float> logits);
  void take_rows(const Part& part, std::size_t row, std::span<const std::int32_t> found, std::span<float> logits);
  std::int64_t steps_ahead(const std::vector<Part>& parts) const;
  /// `first`: the row of its first token in this pass.
  void score_prompt(Sequence& q, std::int64_t tokens, std::size_t first, std::span<const std::int32_t> found,
                    std::span<const float> logits);
  Token logprobs_of(std::size_t row, std::int32_t id, int most, std::span<const std::int32_t> found,
                    std::span<const float> logits);
  bool chosen_on_gpu(const Sequence& q) const;
  SamplingState sampling_state(const Sequence& q, std::int64_t later) const;
  void choose(Sequence& q, std::span<float> logits);
  Token chosen_token(const Sequence& q, std::size_t row, std::int32_t id) const;
  void take_chosen(Sequence& q, const Token& token);
  void take(Sequence& q, const Token& token);
  void end(Sequence& q, End::Reason reason, std::string message = {});
  void remove_ended();

  const models::LanguageModel& model_;
  EngineOptions options_;
  DType dtype_;
  PageTable table_;
  std::optional<WindowPages> windows_;  // of layers with a window, if they have pages of their own
  PackedPasses passes_;
  std::unique_ptr<Drafter> drafter_;  // null: no speculation
  Sampler sampler_;
  StepCost cost_;
  Clock::time_point start_ = Clock::now();
  EngineState done_;  // counts of what has been done
  RequestId last_id_ = 0;
  bool stepping_ = false;
  std::function<bool()> interrupted_;  // null: never
  Queue waiting_, running_;
  std::vector<std::int32_t> ids_of_pass_;
  std::vector<std::vector<RowRules>> rules_of_pass_;       // of each part
  std::vector<std::vector<std::int32_t>> wanted_of_pass_;  // of each part
};

}  // namespace hpcdl::infer
