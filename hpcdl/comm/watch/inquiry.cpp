#include "hpcdl/comm/watch/inquiry.h"

#include <algorithm>

#include "hpcdl/comm/watch/verdict.h"

namespace hpcdl::comm {

using Kind = RankState::Kind;

Inquiry::Inquiry(const Channel& channel, std::chrono::nanoseconds patience, std::chrono::nanoseconds settle)
    : rank_(channel.rank()), patience_(patience), settle_(settle) {
  for (int r = 0; r < channel.size(); ++r) {
    ranks_.emplace_back();
    ranks_.back().host = channel.host(r);
  }
  heard_at_.resize(ranks_.size());
}

void Inquiry::heard(int rank, const Report& report, bool answer) {
  state(rank).report = report;
  heard_at_[static_cast<std::size_t>(rank)] = Clock::now();
  if (answer && state(rank).kind == Kind::silent) state(rank).kind = Kind::answers;
}

void Inquiry::gone(int rank, const std::string& why) {
  if (state(rank).kind == Kind::failed || state(rank).kind == Kind::finished) return;
  state(rank).kind = Kind::gone;
  const std::string prefix = fmt::format("rank {} on {}: ", rank, state(rank).host);
  state(rank).why = why.starts_with(prefix) ? why.substr(prefix.size()) : why;
}

std::vector<int> Inquiry::reachable() const {
  std::vector<int> out;
  for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
    const Kind k = ranks_[static_cast<std::size_t>(r)].kind;
    if (r != rank_ && (k == Kind::answers || k == Kind::silent)) out.push_back(r);
  }
  return out;
}

bool Inquiry::begin(const Stuck& stuck) {
  if (stuck.rank >= 0) stuck_.push_back(stuck);
  if (asking_) return false;
  asking_ = true;
  learn_by_ = Clock::now() + settle_;
  deadline_ = Clock::now() + patience_;
  for (auto& r : ranks_)
    if (r.kind == Kind::answers) r.kind = Kind::silent;
  return true;
}

bool Inquiry::complete() const {
  const auto them = reachable();
  return asking_ && std::all_of(them.begin(), them.end(),
                                [&](int r) { return ranks_[static_cast<std::size_t>(r)].kind == Kind::answers; });
}

bool Inquiry::may_learn(const Report& mine) {
  set_mine(mine);
  if (Clock::now() >= learn_by_ || !judge(ranks_, stuck_).vague) return false;
  deadline_ = std::min(deadline_, learn_by_);
  return true;
}

void Inquiry::set_mine(const Report& mine) {
  state(rank_).report = mine;
  state(rank_).kind = Kind::answers;
}

void Inquiry::set_ages() {
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (heard_at_[r] != Deadline{})
      ranks_[r].heard_ago = std::chrono::duration<double>(Clock::now() - heard_at_[r]).count();
}

std::string Inquiry::verdict(const Report& mine) {
  set_mine(mine);
  set_ages();
  return judge(ranks_, stuck_).sentence;
}

std::string Inquiry::paused(const Report& mine, double seconds) {
  set_mine(mine);
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const auto kind = ranks_[r].kind;
    if (static_cast<int>(r) != rank_ && kind != Kind::gone && kind != Kind::silent) return "";
  }
  return judge_pause(ranks_, rank_, seconds).sentence;
}

std::string Inquiry::failed(int rank, std::string_view why, const Report& mine) {
  set_mine(mine);
  state(rank).kind = Kind::failed;
  state(rank).why = why;
  return judge(ranks_, stuck_).sentence;
}

/// This rank knows nothing about the others except rank 0, so it does not blame them.
std::string Inquiry::without_keeper(const Report& mine) {
  set_ages();
  std::vector<RankState> known(ranks_);
  for (std::size_t r = 1; r < known.size(); ++r) known[r].kind = Kind::answers;
  known[static_cast<std::size_t>(rank_)].report = mine;
  return judge(known, rank_, 0).sentence;
}

}  // namespace hpcdl::comm
