package io.kera.client;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.ToolProvider;

/** The programs that a README shows, as they are run by tests: only the broker's address is another. */
public final class ReadmePrograms {
    private static final Pattern CLASS = Pattern.compile("class (\\w+)");
    private static final String SHOWN = "localhost:7600";

    private ReadmePrograms() {}

    /** The blocks of a language in the README of the module that is tested, for a broker at {@code address}. */
    public static List<String> blocks(String language, String address) throws IOException {
        return blocks(Path.of(System.getProperty("kera.readme")), language, address);
    }

    /** The same in the README of all connectors. */
    public static List<String> ofAll(String language, String address) throws IOException {
        return blocks(Path.of(System.getProperty("kera.readme")).resolve("../../README.md"), language, address);
    }

    private static List<String> blocks(Path readme, String language, String address) throws IOException {
        String text = Files.readString(readme.normalize());
        Matcher found = Pattern.compile("```" + language + "\n(.*?)```", Pattern.DOTALL).matcher(text);
        List<String> blocks = new ArrayList<>();
        while (found.find()) {
            blocks.add(found.group(1).replace(SHOWN, address));
        }
        return blocks;
    }

    /** Compiles a program, and runs its main method; what it prints. */
    public static String run(String program, Path directory) throws Exception {
        Matcher name = CLASS.matcher(program);
        if (!name.find()) {
            throw new IllegalArgumentException("no class: " + program);
        }
        Path source = directory.resolve(name.group(1) + ".java");
        Files.writeString(source, program);
        ByteArrayOutputStream told = new ByteArrayOutputStream();
        int failed = ToolProvider.getSystemJavaCompiler()
                .run(null, told, told, "-cp", classPath(), "-d", directory.toString(), source.toString());
        if (failed != 0) {
            throw new IllegalArgumentException(told.toString(StandardCharsets.UTF_8));
        }
        PrintStream before = System.out;
        ClassLoader own = Thread.currentThread().getContextClassLoader();
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (URLClassLoader loader = new URLClassLoader(new URL[] {directory.toUri().toURL()}, own)) {
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            Thread.currentThread().setContextClassLoader(loader);
            loader.loadClass(name.group(1)).getMethod("main", String[].class).invoke(null, (Object) new String[0]);
        } finally {
            System.setOut(before);
            Thread.currentThread().setContextClassLoader(own);
        }
        return out.toString(StandardCharsets.UTF_8);
    }

    /** The tests' own: a jar that only names others, as Surefire makes, is of no use to the compiler. */
    private static String classPath() {
        return System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
    }
}
