// One side of gpt2_step.py: the CPU trainer of llm.c, from a checkout that you have made (see llmc.sh). Prints "ready", then
// answers every line on stdin with one training step. The weights are random: only time and memory are compared.

#define TESTING  // leaves out its main()
#include "train_gpt2.c"

#include <sys/resource.h>

static unsigned long long lcg = 88172645463325252ULL;
static float uniform(void) {  // [-1, 1)
  lcg = lcg * 6364136223846793005ULL + 1442695040888963407ULL;
  return (float)(lcg >> 40) / 8388608.0f - 1.0f;
}

static void write_random_checkpoint(const char* path) {
  enum { kContext = 1024, kVocab = 50257, kLayers = 12, kHeads = 12, kWidth = 768, kPadded = 50304 };
  int header[256] = {20240326, 3, kContext, kVocab, kLayers, kHeads, kWidth, kPadded};
  const size_t c = kWidth, l = kLayers;
  // wte wpe ln1w ln1b qkvw qkvb projw projb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb
  const size_t sizes[16] = {kPadded * c, kContext * c, l * c, l * c, l * 3 * c * c, l * 3 * c, l * c * c, l * c,
                            l * c, l * c, l * 4 * c * c, l * 4 * c, l * c * 4 * c, l * c, c, c};
  FILE* f = fopen(path, "wb");
  if (!f) exit(1);
  fwrite(header, sizeof header, 1, f);
  for (int i = 0; i < 16; ++i) {
    const int gain = i == 2 || i == 8 || i == 14;
    for (size_t k = 0; k < sizes[i]; ++k) {
      const float w = gain ? 1.0f : 0.035f * uniform();
      fwrite(&w, 4, 1, f);
    }
  }
  fclose(f);
}

int main(int argc, char** argv) {
  const int B = argc > 1 ? atoi(argv[1]) : 4, T = argc > 2 ? atoi(argv[2]) : 64;
  char path[] = "/tmp/llmc_random_XXXXXX";
  close(mkstemp(path));
  write_random_checkpoint(path);
  GPT2 model;
  FILE* out = fdopen(dup(1), "w");
  if (!freopen("/dev/null", "w", stdout)) return 1;  // its own report is not ours
  gpt2_build_from_checkpoint(&model, path);
  unlink(path);
  int* tokens = malloc((size_t)(B * T + 1) * sizeof(int));
  char line[64];
  for (int step = 0;; ++step) {
    for (int i = 0; i <= B * T; ++i) tokens[i] = (int)((uniform() + 1.0f) * 25000.0f);
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    gpt2_forward(&model, tokens, tokens + 1, B, T);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
    clock_gettime(CLOCK_MONOTONIC, &b);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (step == 0) fprintf(out, "ready\n");
    else fprintf(out, "{\"ms\": %.3f, \"loss\": %.4f, \"peak_bytes\": %ld}\n", (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6,
                 model.mean_loss, usage.ru_maxrss * 1024L);
    fflush(out);
    if (!fgets(line, sizeof line, stdin)) return 0;
  }
}
