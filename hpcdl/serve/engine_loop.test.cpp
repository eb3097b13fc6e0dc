// How soon the thread of an engine ends a text that nobody wants any more.

#include "hpcdl/serve/engine_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>

#include "hpcdl/infer/engine_for_tests.h"

namespace hpcdl::serve {
namespace {

constexpr std::uint64_t kGoesOn = 1, kLeaves = 2;

/// A text goes on, one token a pass, while another one comes and leaves. Counts the passes from that moment to its end.
class Leaving {
 public:
  /// `tokens`: the other text leaves after so many of its own; 0: one pass after it has come.
  Leaving(const infer::EngineOptions& options, int prompt, int tokens) : prompt_(prompt), tokens_(tokens) {
    loop_ = std::make_unique<EngineLoop>(EngineLoop::Hooks{
        .open = [this, options] { return std::make_unique<infer::Engine>(model_, pool_, options); },
        .ready = [] {},
        .deliver = [this](std::vector<Event> events) { std::ranges::for_each(events, [this](auto& e) { hear(e); }); },
        .failed = [](std::exception_ptr) { FAIL() << "the engine has failed"; },
    });
  }

  int passes() {
    loop_->submit(kGoesOn, {.prompt = infer::ids_from(1, 3), .tokens = 150, .sampling = {.ignore_eos = true}});
    ended_.get_future().wait();
    EXPECT_EQ(reason_, infer::End::Reason::cancelled);
    return passes_;
  }

 private:
  /// On the thread of the engine.
  void hear(const Event& e) {
    const auto* const end = std::get_if<infer::End>(&e.what);
    if (end && e.id == kLeaves) reason_ = end->reason, state_ = State::gone;
    else if (end) ended_.set_value();
    else if (e.id == kLeaves && ++own_ == tokens_) leave();
    else if (e.id == kGoesOn) pass();
  }
  void pass() {
    if (state_ == State::absent) {
      state_ = State::there;
      loop_->submit(kLeaves, {.prompt = infer::ids_from(2, prompt_), .tokens = 10, .sampling = {.ignore_eos = true}});
    } else if (state_ == State::there && tokens_ == 0) {
      leave();
    } else if (state_ == State::leaving) {
      ++passes_;
    }
  }
  void leave() { state_ = State::leaving, loop_->cancel(kLeaves); }

  enum class State { absent, there, leaving, gone };
  Pool pool_{1};
  models::LanguageModel model_ = infer::with_clear_logits(io::Family::llama);
  std::promise<void> ended_;
  int prompt_, tokens_, own_ = 0, passes_ = 0;
  State state_ = State::absent;
  infer::End::Reason reason_ = infer::End::Reason::failed;
  std::unique_ptr<EngineLoop> loop_;  // ends before what its thread uses
};

TEST(EngineLoop, a_text_that_is_cancelled_ends_within_two_passes) {
  EXPECT_LE(Leaving({.sequences = 2}, 5, 3).passes(), 2) << "while it is continued";
  EXPECT_LE(Leaving({.sequences = 2, .budget = 2 + infer::kLeastChunk}, 150, 0).passes(), 2) << "in its prompt";
  EXPECT_LE(Leaving({.sequences = 1}, 5, 0).passes(), 2) << "in the queue";
}

}  // namespace
}  // namespace hpcdl::serve
