#pragma once
// A schedule of a pipeline as plain data: which rank does what, in which order. A model is cut into stages, and a
// training step into micro-batches; every micro-batch goes forward through all stages and back.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::pipe {

enum class Act : std::uint8_t {
  forward,
  backward,         // the gradients of the input and of the weights
  input_gradient,   // a backward in two halves: the half for which the stage before waits,
  weight_gradient,  // and the half for which only the update waits
  send,
  receive,
  load,   // from host memory
  store,  // to host memory
  reduce,
  update,
  // Of a vocabulary whose rows the ranks divide (vocabulary.h). These compute, on every rank:
  lookup,           // the rows of the embedding that a rank has
  logits,           // those of its columns, and their largest and the sum of their exponentials
  loss,             // the loss, and the gradients of its columns
  lookup_gradient,  // the gradient of its rows of the embedding
  // and in these, all ranks exchange something:
  sum_rows,       // to the first stage
  give_hidden,    // the input of the head, from the last stage
  combine,        // what each knows of the logits
  sum_gradients,  // of the input of the head, to the last stage
  give_gradient,  // of the embedding, from the first stage
};
inline constexpr int kActs = 19;

/// "forward", "input gradient".
std::string_view act_name(Act act);
/// The letter of an act that computes, as in order files: F, B, I, W; and others for the others.
char act_letter(Act act);

/// Whether it computes something of a stage.
constexpr bool computes(Act act) { return act <= Act::weight_gradient; }
constexpr bool of_vocabulary(Act act) { return act >= Act::lookup; }
/// Whether it computes something of a rank's share of a vocabulary.
constexpr bool computes_share(Act act) { return act >= Act::lookup && act <= Act::lookup_gradient; }
/// Whether the rank computes, and can do nothing else.
constexpr bool occupies(Act act) { return computes(act) || computes_share(act); }
/// Whether all ranks take part in it: each has the same action of the same micro-batch, and all are done together.
constexpr bool joins_ranks(Act act) { return act >= Act::sum_rows; }
/// The acts after which the stage before can go on.
constexpr bool gives_input_gradient(Act act) { return act == Act::backward || act == Act::input_gradient; }
/// The acts after which nothing of a micro-batch is needed any more.
constexpr bool gives_weight_gradient(Act act) { return act == Act::backward || act == Act::weight_gradient; }

/// What follows after the compute acts is added by lower(): see lower.h for the slots.
struct Action {
  Act act = Act::forward;
  std::int16_t stage = 0;   // of_vocabulary(): the rank
  std::int16_t peer = -1;   // of a transfer: the stage at the other end
  std::int16_t slot = -1;   // the memory that it uses; before lower(): -1
  std::int32_t micro = -1;  // -1: not of one micro-batch
  bool operator==(const Action&) const = default;
};

/// How many micro-batches each kind of memory of a stage can hold at a time.
struct StageSlots {
  int frames = 0;       // on its forward rank: what forward keeps for backward
  int loaded = 0;       // on its backward rank: frames that come from host memory
  int activations = 0;  // on its forward rank: inputs that have arrived
  int gradients = 0;    // on its backward rank: gradients of its output that have arrived
};

/// The same of a rank's share of a vocabulary.
struct ShareSlots {
  int rows = 0;       // of the embedding, which are summed over the ranks
  int logits = 0;     // with the input of the head
  int gradients = 0;  // of the embedding
};

struct Schedule {
  int micros = 0;
  std::vector<std::int16_t> forward_rank = {}, backward_rank = {};  // by stage
  std::vector<std::vector<Action>> of_rank = {};
  bool on_host = false;                // stages stay in host memory, and are on a rank only while it uses them
  std::vector<StageSlots> slots = {};  // by stage; empty before lower()
  /// How often all ranks wait for each other in a micro-batch because they divide a vocabulary; 0: they do not.
  int barriers = 0;
  std::vector<ShareSlots> shares = {};  // then by rank; empty before lower()

  int ranks() const { return static_cast<int>(of_rank.size()); }
  int stages() const { return static_cast<int>(forward_rank.size()); }
  bool lowered() const { return !slots.empty(); }
  bool divides_vocabulary() const { return barriers > 0; }
  int first_rank() const { return forward_rank.front(); }
  int last_rank() const { return forward_rank.back(); }
  /// The rank that computes, sends, receives, reduces or updates. Host memory is used by both ranks of a stage.
  int rank_of(const Action& a) const;
};

/// Whether a transfer sends an activation to the next stage, and not a gradient to the one before. `sending`: its stage.
constexpr bool to_next(int sending, int receiving) { return receiving == sending + 1; }
inline bool carries_activation(const Action& a) {
  return a.act == Act::send ? to_next(a.stage, a.peer) : to_next(a.peer, a.stage);
}

/// "the forward of stage 2, micro-batch 0"; "the send of an activation from stage 1 to stage 2, micro-batch 0".
std::string text(const Action& a);

}  // namespace hpcdl::pipe
