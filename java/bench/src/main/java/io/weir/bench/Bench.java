package io.weir.bench;

import java.util.Arrays;

/** The benchmarks that need Flink: {@code ./weir bench state} and {@code ./weir bench sync}. */
public final class Bench {

    private Bench() {}

    public static void main(String[] arguments) throws Exception {
        String[] rest =
                Arrays.copyOfRange(arguments, Math.min(1, arguments.length), arguments.length);
        switch (arguments.length == 0 ? "" : arguments[0]) {
            case "state":
                StateBench.main(rest);
                break;
            case "sync":
                SyncBench.main(rest);
                break;
            case Worker.VERB:
                Worker.main(rest);
                break;
            default:
                System.err.println("bench: state or sync");
                System.exit(2);
        }
    }
}
