package io.weir.bench;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** {@code --name value} pairs of a command line. */
final class Arguments {

    private final Map<String, String> values = new LinkedHashMap<>();

    /** Ends the process with the usage on {@code --help}, and on what is not in {@code known}. */
    Arguments(String[] arguments, Set<String> known, String usage) {
        for (int i = 0; i < arguments.length; i += 2) {
            String name = arguments[i];
            if (name.equals("--help") || name.equals("-h")) {
                System.out.print(usage);
                System.exit(0);
            }
            if (!known.contains(name) || i + 1 == arguments.length) {
                throw wrong("unknown or incomplete argument " + name);
            }
            values.put(name, arguments[i + 1]);
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        String text = values.get(name);
        try {
            int number = text == null ? otherwise : Integer.parseInt(text);
            if (number > 0) {
                return number;
            }
        } catch (NumberFormatException e) {
            // Said below.
        }
        throw wrong(name + " takes a whole number above 0, not " + text);
    }

    double decimal(String name, double otherwise) {
        String text = values.get(name);
        try {
            double number = text == null ? otherwise : Double.parseDouble(text);
            if (number > 0) {
                return number;
            }
        } catch (NumberFormatException e) {
            // Said below.
        }
        throw wrong(name + " takes a number above 0, not " + text);
    }

    /** A comma-separated choice; {@code otherwise} if it is not given. */
    List<String> choice(String name, List<String> allowed, List<String> otherwise) {
        String text = values.get(name);
        if (text == null) {
            return otherwise;
        }
        if (text.equals("all")) {
            return allowed;
        }
        List<String> chosen = Arrays.asList(text.split(","));
        for (String one : chosen) {
            if (!allowed.contains(one)) {
                throw wrong(name + ": " + one + " is none of " + String.join(", ", allowed));
            }
        }
        return chosen;
    }

    private static RuntimeException wrong(String message) {
        System.err.println("bench: " + message);
        System.exit(2);
        return new IllegalStateException();
    }
}
