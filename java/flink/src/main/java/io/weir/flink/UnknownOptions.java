package io.weir.flink;

import org.apache.flink.configuration.ConfigOption;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.TreeSet;

/** Finds options that are named like Weir's but are none: most likely they are misspelt. */
final class UnknownOptions {

    private UnknownOptions() {}

    /** The keys of all options, in order. */
    static TreeSet<String> known() {
        TreeSet<String> keys = new TreeSet<>();
        for (Field field : WeirOptions.class.getFields()) {
            if (field.getType() == ConfigOption.class) {
                try {
                    keys.add(((ConfigOption<?>) field.get(null)).key());
                } catch (IllegalAccessException e) {
                    throw new IllegalStateException(e);
                }
            }
        }
        return keys;
    }

    /** A sentence for each configured key that has no effect. */
    static List<String> warnings(Collection<String> configured) {
        TreeSet<String> known = known();
        List<String> warnings = new ArrayList<>();
        for (String key : new TreeSet<>(configured)) {
            if (key.startsWith(WeirOptions.PREFIX) && !known.contains(key)) {
                String nearest =
                        known.stream()
                                .min(Comparator.comparingInt(option -> distance(key, option)))
                                .orElseThrow();
                warnings.add(
                        String.format(
                                "Option '%s' does not exist and has no effect. Did you mean '%s'?",
                                key, nearest));
            }
        }
        return warnings;
    }

    /**
     * How many characters have to be inserted or removed; a change counts as both, so that a part
     * that was left out is nearer than another word.
     */
    private static int distance(String from, String to) {
        int[] row = new int[to.length() + 1];
        for (int j = 0; j <= to.length(); j++) {
            row[j] = j;
        }
        for (int i = 1; i <= from.length(); i++) {
            int diagonal = row[0];
            row[0] = i;
            for (int j = 1; j <= to.length(); j++) {
                int changed = diagonal + (from.charAt(i - 1) == to.charAt(j - 1) ? 0 : 2);
                diagonal = row[j];
                row[j] = Math.min(changed, 1 + Math.min(row[j], row[j - 1]));
            }
        }
        return row[to.length()];
    }
}
