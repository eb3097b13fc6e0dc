#include "hpcdl/serve/embedding_service.h"

#include <algorithm>
#include <utility>

#include "hpcdl/core/error.h"
#include "hpcdl/serve/openai.h"

namespace hpcdl::serve {

EmbeddingService::EmbeddingService(const EncoderOptions& options, Hooks hooks)
    : hooks_(std::move(hooks)), options_(options), thread_([this] { work(); }) {}

void EmbeddingService::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// -- the thread of the server

void EmbeddingService::start(EmbeddingCall call, const std::shared_ptr<Exchange>& reply, const std::string& model) {
  const auto id = ++last_id_;
  texts_ += call.texts.size(), tokens_ += call.tokens();
  {
    const std::lock_guard lock(mutex_);
    new_.push_back({.id = id, .texts = call.texts});
  }
  changed_.notify_one();
  reply->on_gone = [this, id] { drop(id); };
  open_.emplace(id, Open{std::move(call), reply, model});
}

void EmbeddingService::drop(std::uint64_t id) {
  const auto it = open_.find(id);
  if (!thread_.joinable() || it == open_.end()) return;
  const auto texts = it->second.call.texts.size();
  texts_ -= texts;
  open_.erase(it);
  {
    const std::lock_guard lock(mutex_);
    gone_.push_back(id);
  }
  hooks_.ended(texts, false);
}

void EmbeddingService::fail(int status, std::string_view message) {
  for (auto& [id, open] : std::exchange(open_, {}))
    open.reply->answer(status, "application/json", error_body(status, message));
  texts_ = 0;
}

void EmbeddingService::end(Job& job) {
  const auto it = open_.find(job.id);
  if (it == open_.end()) return;
  const auto open = std::move(it->second);
  open_.erase(it);
  texts_ -= open.call.texts.size();
  constexpr const char* kJson = "application/json";
  if (job.error.empty()) open.reply->answer(200, kJson, embeddings_body(open.call, job.vectors, open.model));
  else open.reply->answer(500, kJson, error_body(500, job.error));
  hooks_.ended(open.call.texts.size(), job.error.empty());
}

// -- the thread of the encoder

void EmbeddingService::work() {
  try {
    encoder_ = std::make_unique<LoadedEncoder>(options_);
  } catch (...) {
    return hooks_.post([this, failure = std::current_exception()] { hooks_.failed(failure); });
  }
  hooks_.post([this] { hooks_.ready(); });
  while (take_jobs()) {
    turn();
    deliver();
  }
}

/// Waits until there is a job; false at the end.
bool EmbeddingService::take_jobs() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ending_ || !new_.empty() || !jobs_.empty(); });
  std::ranges::move(new_, std::back_inserter(jobs_));
  new_.clear();
  const auto gone = std::exchange(gone_, {});
  std::erase_if(jobs_, [&](const Job& j) { return std::ranges::find(gone, j.id) != gone.end(); });
  return !ending_;
}

void EmbeddingService::turn() {
  constexpr std::int64_t kPasses = 4;
  std::vector<Job*> whose;
  std::vector<std::vector<std::int32_t>> texts;
  std::int64_t tokens = 0;
  for (bool more = true; more;) {
    more = false;
    for (auto& job : jobs_) {
      if (job.taken == job.texts.size() || tokens >= kPasses * options_.budget) continue;
      more = true;
      tokens += std::ssize(texts.emplace_back(job.texts[job.taken++]));
      whose.push_back(&job);
    }
  }
  std::vector<std::vector<float>> vectors;
  try {
    vectors = encoder_->embed(texts);
  } catch (const std::exception&) {
    for (std::size_t i = 0; i < texts.size(); ++i) try {  // who has failed?
        vectors.push_back(encoder_->embed(std::span(texts).subspan(i, 1))[0]);
      } catch (const std::exception& e) {
        whose[i]->error = e.what();
        vectors.emplace_back();
      }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) whose[i]->vectors.push_back(std::move(vectors[i]));
}

void EmbeddingService::deliver() {
  Jobs going_on;
  for (auto& job : jobs_) {
    if (job.done()) hooks_.post([this, done = std::make_shared<Job>(std::move(job))] { end(*done); });
    else going_on.push_back(std::move(job));
  }
  jobs_ = std::move(going_on);
}

}  // namespace hpcdl::serve
